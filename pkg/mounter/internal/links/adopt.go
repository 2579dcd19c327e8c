package links

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Where the kubelet has targets and staging paths. An empty element is any directory.
var (
	targetPaths  = []string{"pods", "", "volumes", "kubernetes.io~csi", "", "mount"}
	stagingPaths = []string{"plugins", "kubernetes.io", "csi", "", "", "globalmount"}
)

// maxAdopted is the limit of paths at which adopt looks. A node has 110 pods by default.
const maxAdopted = 100_000

// unreadPath is a path at which walk could not look, with the names below it. Links of lost records
// may be there.
type unreadPath struct {
	dir   string
	names []string
	err   error
}

// adopt finds links of lost records, and forgets records whose paths are gone with their parents.
// Without the links of lost records, DeleteVolume would delete a volume in use.
func (l *links) adopt() error {
	for _, r := range l.records.all() {
		at, err := l.stateAt(r.Path)
		if err != nil || at.state != missing {
			continue
		}
		if _, err := l.host.Entry(l.dir(r.Path)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if l.isFolder(r.Source) && l.release(r) != nil { // the record stays, so that Unmount releases the disk
			continue
		}
		if err := l.records.remove(r.Path); err != nil {
			return err
		}
	}
	n := 0
	for _, names := range [][]string{targetPaths, stagingPaths} {
		if err := l.walk(l.kubelet, names, &n); err != nil {
			return err
		}
	}
	return nil
}

// walk looks at each path below dir that consists of names, and follows no link. n counts the
// paths. A path that cannot be read, as during its deletion, is left for readAgain.
func (l *links) walk(dir string, names []string, n *int) error {
	if *n++; *n > maxAdopted {
		return fmt.Errorf("more than %d paths", maxAdopted)
	}
	children, err := l.adoptBelow(dir, names)
	if err != nil {
		l.unreadMu.Lock()
		defer l.unreadMu.Unlock()
		l.unread = append(l.unread, unreadPath{dir, names, err})
		return nil
	}
	for _, child := range children {
		if err := l.walk(l.Join(dir, child), names[1:], n); err != nil {
			return err
		}
	}
	return nil
}

// adoptBelow adopts the link at dir if there are no names, and otherwise returns the entries of dir
// with the first name.
func (l *links) adoptBelow(dir string, names []string) (children []string, err error) {
	if len(names) == 0 {
		at, err := l.stateAt(dir)
		if err == nil && (at.state == mounted || at.state == dead) && at.record.adopted {
			l.records.set(*at.record)
		}
		return nil, err
	}
	switch e, err := l.host.Entry(dir); {
	case errors.Is(err, fs.ErrNotExist), err == nil && e.Kind != PlainDir:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if names[0] != "" {
		return names[:1], nil
	}
	children, err = l.host.Names(dir)
	if errors.Is(err, fs.ErrNotExist) { // a pod may end meanwhile
		return nil, nil
	}
	return children, err
}

// readAgain looks again where walk could not. Errors: ErrBusy while it still cannot: an unknown
// link may be there.
func (l *links) readAgain() error {
	l.unreadMu.Lock()
	unread := l.unread
	l.unread = nil
	l.unreadMu.Unlock()
	n := 0
	for _, u := range unread {
		if err := l.walk(u.dir, u.names, &n); err != nil {
			return err
		}
	}
	l.unreadMu.Lock()
	defer l.unreadMu.Unlock()
	if len(l.unread) > 0 {
		u := l.unread[0]
		return fmt.Errorf("%w: a mount may be at %s, which cannot be read: %w", mounter.ErrBusy, u.dir, u.err)
	}
	return nil
}
