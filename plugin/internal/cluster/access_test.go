package cluster_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// A disk that stalls holds a command for ever.
func TestACommandHasALimit(t *testing.T) {
	c, pod := fake.Healthy(), &corev1.Pod{}
	pod.Name = "p"
	client := cluster.Client{Pods: c.Pods}
	c.Pods.Hangs = "p"
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		out, err := cluster.Run(t.Context(), client, pod, cluster.ExecTimeout, "/driver", "show")
		if err == nil || !strings.Contains(err.Error(), "no end within 30s") || out != nil || time.Since(start) != cluster.ExecTimeout {
			t.Errorf("%q, %v after %s", out, err, time.Since(start))
		}
	})
	c.Pods.Hangs = ""
	for size, want := range map[int]bool{64 << 20: true, 64<<20 + 1: false} {
		c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
			block := make([]byte, 1<<20)
			for n := 0; n < size; n += len(block) {
				_, _ = out.Write(block[:min(len(block), size-n)]) // as the executor, which ignores the error
			}
			return nil
		}
		if out, err := cluster.Run(t.Context(), client, pod, time.Minute, "x"); (err == nil) != want || want && len(out) != size || !want && out != nil {
			t.Errorf("%d bytes: %d, %v", size, len(out), err)
		}
	}
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, "a part")
		return errors.Join(err, &cluster.CommandError{Code: 1})
	}
	if out, err := cluster.Run(context.Background(), client, pod, time.Minute, "x"); err == nil || out != nil {
		t.Errorf("of a command that failed: %q, %v", out, err)
	}
}
