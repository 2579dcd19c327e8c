package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

// model is a Windows node: its drives, as far as a links uses them. Names are equal without regard
// to case, a link in the middle of a path is followed, and a directory that a process has open, or
// has as its working directory, cannot be removed. Everything survives a reboot.
type model struct {
	mu     sync.Mutex
	drives map[string]*modelNode // by key
	// before and after, if not nil, are called around each operation that changes something. They
	// may panic, as the driver dies then. An error of before is the result of the operation,
	// without its effect. An error of after is the result in spite of its effect.
	before, after func(op, path string) error
	unreadable    string // a path at which look returns an error
	// made, if not nil, changes the entry that link makes; nil: none is made.
	made  func(LinkEntry) *LinkEntry
	disks *modelDisks
}

type modelNode struct {
	LinkEntry
	name     string
	children map[string]*modelNode // of a directory, by key
	open     bool                  // by a process
	disk     *modelDisk            // of a file: a virtual disk
	volume   string                // of a directory: the volume that it shows
}

func newModel() *model {
	m := &model{drives: map[string]*modelNode{}}
	for _, drive := range []string{`C:\`, `D:\`} {
		m.drives[WindowsPaths.Key(drive)] = newModelDir(drive)
	}
	m.disks = &modelDisks{m: m}
	return m
}

func newModelDir(name string) *modelNode {
	return &modelNode{LinkEntry: LinkEntry{Kind: PlainDir}, name: name, children: map[string]*modelNode{}}
}

func (m *model) Form() PathForm { return WindowsPaths }

// find returns the node at path, and its parent, of which only the last element may be missing. It
// follows links, but for the last element.
func (m *model) find(path string) (parent, node *modelNode, err error) {
	return m.follow(path, 0)
}

func (m *model) follow(path string, links int) (parent, node *modelNode, err error) {
	clean, err := CleanWindows(path)
	if err != nil || links > 40 {
		return nil, nil, fmt.Errorf("model: %q: %w", path, errors.Join(err, fs.ErrInvalid))
	}
	node, ok := m.drives[WindowsPaths.Key(clean[:3])]
	if !ok {
		return nil, nil, NotExist("open", path)
	}
	names, _ := WindowsPaths.elements(clean[:3], clean)
	for i, name := range names {
		if node != nil && node.Kind == DirLink {
			at := node.Text
			if _, node, err = m.follow(at, links+1); err != nil {
				return nil, nil, err
			}
			if node != nil && node.Kind == DirLink {
				return m.follow(WindowsPaths.Join(node.Text, names[i:]...), links+1)
			}
		}
		if node == nil || node.Kind != PlainDir {
			return nil, nil, NotExist("open", path)
		}
		if node.volume != "" {
			v := m.disks.volume(node.volume)
			if v == nil {
				return nil, nil, NotExist("open", path)
			}
			node = v.root
		}
		parent, node = node, node.children[WindowsPaths.Key(name)]
	}
	return parent, node, nil
}

// change makes a change between before and after.
func (m *model) change(op, path string, change func(parent, node *modelNode) error) error {
	if m.before != nil {
		if err := m.before(op, path); err != nil {
			return err
		}
	}
	err := m.locked(func() error {
		parent, node, err := m.find(path)
		if err == nil && parent == nil {
			err = errors.New("the root of a drive")
		}
		if err != nil {
			return err
		}
		return change(parent, node)
	})
	if err == nil && m.after != nil {
		err = m.after(op, path)
	}
	if err != nil {
		err = fmt.Errorf("model: %s %s: %w", op, path, err)
	}
	return err
}

func (m *model) locked(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f()
}

func (m *model) Entry(path string) (e LinkEntry, err error) {
	if path == m.unreadable {
		return LinkEntry{}, errors.New("error 5")
	}
	err = m.locked(func() error {
		_, node, err := m.find(path)
		if err == nil && node == nil {
			err = NotExist("look", path)
		}
		if err == nil {
			e = node.LinkEntry
		}
		return err
	})
	return e, err
}

// add adds an entry that must not exist yet.
func add(parent, node, entry *modelNode, path string) error {
	if node != nil {
		return fs.ErrExist
	}
	entry.name = path[strings.LastIndex(path, `\`)+1:]
	parent.children[WindowsPaths.Key(entry.name)] = entry
	return nil
}

// cut removes an entry.
func cut(parent, node *modelNode) error {
	if node.open || node.disk != nil && node.disk.attached {
		return mounter.ErrBusy
	}
	delete(parent.children, WindowsPaths.Key(node.name))
	return nil
}

func (m *model) Link(source, path string) error {
	return m.change("link", path, func(parent, node *modelNode) error {
		entry := &LinkEntry{Kind: DirLink, Text: source}
		if m.made != nil {
			entry = m.made(*entry)
		}
		if entry == nil {
			return nil
		}
		return add(parent, node, &modelNode{LinkEntry: *entry}, path)
	})
}

func (m *model) Unlink(path string) error {
	return m.change("unlink", path, func(parent, node *modelNode) error {
		switch {
		case node == nil:
			return fs.ErrNotExist
		case node.Kind != DirLink && node.Kind != OtherLink:
			return errors.New("not a link")
		}
		return cut(parent, node)
	})
}

func (m *model) Mkdir(path string) error {
	return m.change("mkdir", path, func(parent, node *modelNode) error {
		return add(parent, node, newModelDir(""), path)
	})
}

func (m *model) Rmdir(path string) error {
	return m.change("rmdir", path, func(parent, node *modelNode) error {
		switch {
		case node == nil:
			return fs.ErrNotExist
		case node.Kind != PlainDir:
			return errors.New("not a directory")
		case len(node.children) > 0:
			return mounter.ErrNotEmpty
		}
		return cut(parent, node)
	})
}

func (m *model) Names(path string) (names []string, err error) {
	err = m.locked(func() error {
		_, node, err := m.find(path)
		if err == nil && (node == nil || node.Kind != PlainDir) {
			err = NotExist("names", path)
		}
		if err == nil {
			for _, child := range node.children {
				names = append(names, child.name)
			}
		}
		return err
	})
	return names, err
}

func (m *model) Usage(path string) (mounter.Usage, error) {
	e, err := m.Entry(path)
	if err == nil && e.Kind != PlainDir {
		err = errors.New("not a directory")
	}
	return mounter.Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}, err
}

// modelFiles are the files of a model, for a bench. Its operations are not those of the driver.
type modelFiles struct{ *model }

func (f modelFiles) Join(dir string, names ...string) string { return WindowsPaths.Join(dir, names...) }
func (f modelFiles) Exists(path string) bool                 { _, err := f.Entry(path); return err == nil }
func (f modelFiles) Remove(path string) error                { return f.Rmdir(path) }
func (f modelFiles) Symlink(text, path string) error         { return f.Link(text, path) }

func (f modelFiles) MkdirAll(path string) error {
	names, _ := WindowsPaths.elements(path[:3], path)
	for i := range names {
		if err := f.Mkdir(WindowsPaths.Join(path[:3], names[:i+1]...)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (f modelFiles) WriteFile(path, _ string) error {
	return f.change("write", path, func(parent, node *modelNode) error {
		return add(parent, node, &modelNode{LinkEntry: LinkEntry{Kind: PlainFile}}, path)
	})
}

func (f modelFiles) Rename(from, to string) error {
	var moved *modelNode
	if err := f.change("rename", from, func(parent, node *modelNode) error {
		if node == nil {
			return fs.ErrNotExist
		}
		moved = node
		return cut(parent, node)
	}); err != nil {
		return err
	}
	return f.change("rename", to, func(parent, node *modelNode) error { return add(parent, node, moved, to) })
}

// tree returns the paths of all entries below path, with their kinds and texts, sorted.
func (m *model) tree(path string) []string {
	var all []string
	var walk func(path string, n *modelNode)
	walk = func(path string, n *modelNode) {
		all = append(all, fmt.Sprintf("%s %s %s", path, n.Kind, n.Text))
		for _, child := range n.children {
			walk(WindowsPaths.Join(path, child.name), child)
		}
	}
	m.locked(func() error {
		if _, node, err := m.find(path); err == nil && node != nil {
			walk(path, node)
		}
		return nil
	})
	slices.Sort(all)
	return all
}

// modelStore is a recordStore in memory.
type modelStore struct {
	m     *model // whose before and after are called, too
	files map[string][]byte
}

func (s *modelStore) read() (map[string][]byte, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return maps.Clone(s.files), nil
}

func (s *modelStore) write(name string, data []byte) error {
	return s.change("write record", name, func() { s.files[name] = data })
}

func (s *modelStore) remove(name string) error {
	return s.change("remove record", name, func() { delete(s.files, name) })
}

func (s *modelStore) change(op, name string, change func()) error {
	if s.m.before != nil {
		if err := s.m.before(op, name); err != nil {
			return err
		}
	}
	s.m.mu.Lock()
	change()
	s.m.mu.Unlock()
	if s.m.after != nil {
		return s.m.after(op, name)
	}
	return nil
}

// newModelBench is a bench on a model, with records that outlive the Host.
func newModelBench(t *testing.T) (*bench, *model, *modelStore) {
	t.Helper()
	m := newModel()
	b := &bench{&mountercontract.Bench{T: t, Files: modelFiles{m}, Kubelet: `C:\var\lib\kubelet`, Storage: `D:\causeway`}}
	b.Mkdir(b.Kubelet)
	b.Mkdir(b.Storage)
	store := &modelStore{m: m, files: map[string][]byte{}}
	b.Mkdir(modelFolders)
	b.Host = Host{startLinks(t, m, b.Kubelet, store)}
	return b, m, store
}

func startLinks(t *testing.T, host LinkHost, kubelet string, store recordStore) *links {
	t.Helper()
	var options []linkOption
	if m, ok := host.(*model); ok {
		d := newLinkDisks(m.disks, NewWorker().Run, modelFolders, m.disks.records())
		d.pause, d.looks = func(ctx context.Context) error { return ctx.Err() }, 10
		options = append(options, withDisks(d))
	}
	l, err := newLinks(host, kubelet, store, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
