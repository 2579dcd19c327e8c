package quietlog

import (
	"os"
	"testing"

	"k8s.io/klog/v2"
)

func TestKlogPrintsNothing(t *testing.T) {
	Discard()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := os.Stderr
	os.Stderr = w
	klog.Errorf("Mount failed: %v", os.ErrInvalid)
	klog.Infof("Disk successfully formatted")
	klog.Flush()
	os.Stderr = before
	w.Close()
	buf := make([]byte, 1)
	if n, _ := r.Read(buf); n > 0 {
		t.Error("klog has printed a line")
	}
}
