package qemu

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// The program holds the write end of a pipe: the read end is at its end when the program has ended.
func TestTheProgramOfACommandEndsWithAKilledParent(t *testing.T) {
	if os.Getenv("QEMU_PARENT") != "" {
		// Descriptor 3 has no FD_CLOEXEC here, as it was open when this process started.
		t.Fatal(Command(t.Context(), "sh", "-c", "echo started >&3; exec sleep 60"))
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parent := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), "QEMU_PARENT=yes")
	parent.ExtraFiles = []*os.File{w}
	err = parent.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Wait()
	defer parent.Process.Kill()
	if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(r)
	if line, err := said.ReadString('\n'); err != nil {
		t.Fatalf("the program printed %q, %v", line, err)
	}
	parent.Process.Kill()
	if rest, err := io.ReadAll(said); err != nil {
		t.Errorf("the program has not ended: %q, %v", rest, err)
	}
}
