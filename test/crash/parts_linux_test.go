package crash

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/crashpoint"
)

// partDeaths are the points that parts of groups get to, and which of the times. See the steps in
// parts/main.go.
func partDeaths(t *testing.T) (all []string) {
	t.Helper()
	add := func(point string, from, to int) {
		for time := from; time <= to; time++ {
			all = append(all, fmt.Sprintf("%s:%d", point, time))
		}
	}
	for _, point := range points(t) {
		switch call, second, _ := strings.Cut(point, ":"); {
		case call == "group": // three are made, and deleted
			add(point, 1, 3)
		case call == "part":
			add(point, 1, 1)
		case call == "create" && second != "formatted": // after two volumes
			add(point, 3, 5)
		case call == "delete" && second != "checked": // three of three directories
			add(point, 1, 9)
		}
	}
	add("hook:frozen", 1, 3)
	add("hook:durable", 1, 3)
	add("ack", 1, 9)
	return all
}

// parts runs test/crash/parts after so many steps, and returns how many it has done then, and
// whether it was killed.
func (d *disk) parts(bin, crashAt string, done int) (now int, killed bool) {
	d.Helper()
	ctx := await.Context(d)
	cmd := exec.CommandContext(ctx, bin, d.root, d.dir, fmt.Sprint(done))
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+crashAt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	if ctx.Err() != nil {
		d.Fatalf("after %d steps it has not ended: %s", done, log.Bytes())
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if killed = ok && status.Signal() == syscall.SIGKILL; err != nil && !killed {
		d.Fatalf("after %d steps and %d more: %v: %s", done, bytes.Count(out.Bytes(), []byte("done")), err, log.Bytes())
	}
	return done + bytes.Count(out.Bytes(), []byte("done")), killed
}

func TestPartsOfGroupsOutliveTheirMaker(t *testing.T) {
	t.Parallel()
	bin := parts(t)
	for _, f := range filesystems[1:] { // a group takes reflinks
		for _, end := range []string{"dies", "and the power goes"} {
			t.Run(f.name+", "+end, func(t *testing.T) {
				t.Parallel()
				f.need(t)
				for _, point := range part(t, partDeaths(t), 10) {
					t.Run(point, func(t *testing.T) {
						t.Parallel()
						d := newDisk(t, "", f)
						done, killed := d.parts(bin, point, 0)
						if !killed {
							t.Fatalf("it got to the end without getting there")
						}
						if end != "dies" {
							d.cut()
						}
						if _, killed = d.parts(bin, "", done); killed {
							t.Error("it was killed again")
						}
					})
				}
			})
		}
	}
}
