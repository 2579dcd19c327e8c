package local

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInotifyInstancesAreCounted(t *testing.T) {
	before := inotifyUsed()
	const more = 5
	for range more {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Skipf("there are none left: %v", err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	// Others come and go.
	if now := inotifyUsed(); now < more {
		t.Errorf("there were %d, and with %d more %d", before, more, now)
	}
	if err := inotify(1 << 20); err == nil || !strings.Contains(err.Error(), "sysctl fs.inotify.max_user_instances=") {
		t.Errorf("a million nodes: %v", err)
	}
}
