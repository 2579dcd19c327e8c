package mounter

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
	made  func(linkEntry) *linkEntry
	disks *modelDisks
}

type modelNode struct {
	linkEntry
	name     string
	children map[string]*modelNode // of a directory, by key
	open     bool                  // by a process
	disk     *modelDisk            // of a file: a virtual disk
	volume   string                // of a directory: the volume that it shows
}

func newModel() *model {
	m := &model{drives: map[string]*modelNode{}}
	for _, drive := range []string{`C:\`, `D:\`} {
		m.drives[windowsPaths.key(drive)] = newModelDir(drive)
	}
	m.disks = &modelDisks{m: m}
	return m
}

func newModelDir(name string) *modelNode {
	return &modelNode{linkEntry: linkEntry{kind: plainDir}, name: name, children: map[string]*modelNode{}}
}

func (m *model) form() pathForm { return windowsPaths }

// find returns the node at path, and its parent, of which only the last element may be missing. It
// follows links, but for the last element.
func (m *model) find(path string) (parent, node *modelNode, err error) {
	return m.follow(path, 0)
}

func (m *model) follow(path string, links int) (parent, node *modelNode, err error) {
	clean, err := cleanWindows(path)
	if err != nil || links > 40 {
		return nil, nil, fmt.Errorf("model: %q: %w", path, errors.Join(err, fs.ErrInvalid))
	}
	node, ok := m.drives[windowsPaths.key(clean[:3])]
	if !ok {
		return nil, nil, notExist("open", path)
	}
	names, _ := windowsPaths.elements(clean[:3], clean)
	for i, name := range names {
		if node != nil && node.kind == dirLink {
			at := node.text
			if _, node, err = m.follow(at, links+1); err != nil {
				return nil, nil, err
			}
			if node != nil && node.kind == dirLink {
				return m.follow(windowsPaths.join(node.text, names[i:]...), links+1)
			}
		}
		if node == nil || node.kind != plainDir {
			return nil, nil, notExist("open", path)
		}
		if node.volume != "" {
			v := m.disks.volume(node.volume)
			if v == nil {
				return nil, nil, notExist("open", path)
			}
			node = v.root
		}
		parent, node = node, node.children[windowsPaths.key(name)]
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

func (m *model) look(path string) (e linkEntry, err error) {
	if path == m.unreadable {
		return linkEntry{}, errors.New("error 5")
	}
	err = m.locked(func() error {
		_, node, err := m.find(path)
		if err == nil && node == nil {
			err = notExist("look", path)
		}
		if err == nil {
			e = node.linkEntry
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
	parent.children[windowsPaths.key(entry.name)] = entry
	return nil
}

// cut removes an entry.
func cut(parent, node *modelNode) error {
	if node.open || node.disk != nil && node.disk.attached {
		return ErrBusy
	}
	delete(parent.children, windowsPaths.key(node.name))
	return nil
}

func (m *model) link(source, path string) error {
	return m.change("link", path, func(parent, node *modelNode) error {
		entry := &linkEntry{kind: dirLink, text: source}
		if m.made != nil {
			entry = m.made(*entry)
		}
		if entry == nil {
			return nil
		}
		return add(parent, node, &modelNode{linkEntry: *entry}, path)
	})
}

func (m *model) unlink(path string) error {
	return m.change("unlink", path, func(parent, node *modelNode) error {
		switch {
		case node == nil:
			return fs.ErrNotExist
		case node.kind != dirLink && node.kind != otherLink:
			return errors.New("not a link")
		}
		return cut(parent, node)
	})
}

func (m *model) mkdir(path string) error {
	return m.change("mkdir", path, func(parent, node *modelNode) error {
		return add(parent, node, newModelDir(""), path)
	})
}

func (m *model) rmdir(path string) error {
	return m.change("rmdir", path, func(parent, node *modelNode) error {
		switch {
		case node == nil:
			return fs.ErrNotExist
		case node.kind != plainDir:
			return errors.New("not a directory")
		case len(node.children) > 0:
			return ErrNotEmpty
		}
		return cut(parent, node)
	})
}

func (m *model) names(path string) (names []string, err error) {
	err = m.locked(func() error {
		_, node, err := m.find(path)
		if err == nil && (node == nil || node.kind != plainDir) {
			err = notExist("names", path)
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

func (m *model) usage(path string) (Usage, error) {
	e, err := m.look(path)
	if err == nil && e.kind != plainDir {
		err = errors.New("not a directory")
	}
	return Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}, err
}

// modelFiles are the files of a model, for a bench. Its operations are not those of the driver.
type modelFiles struct{ *model }

func (f modelFiles) join(dir string, names ...string) string { return windowsPaths.join(dir, names...) }
func (f modelFiles) exists(path string) bool                 { _, err := f.look(path); return err == nil }
func (f modelFiles) remove(path string) error                { return f.rmdir(path) }
func (f modelFiles) symlink(text, path string) error         { return f.link(text, path) }

func (f modelFiles) mkdirAll(path string) error {
	names, _ := windowsPaths.elements(path[:3], path)
	for i := range names {
		if err := f.mkdir(windowsPaths.join(path[:3], names[:i+1]...)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (f modelFiles) writeFile(path, _ string) error {
	return f.change("write", path, func(parent, node *modelNode) error {
		return add(parent, node, &modelNode{linkEntry: linkEntry{kind: plainFile}}, path)
	})
}

func (f modelFiles) rename(from, to string) error {
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
		all = append(all, fmt.Sprintf("%s %s %s", path, n.kind, n.text))
		for _, child := range n.children {
			walk(windowsPaths.join(path, child.name), child)
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
	b := &bench{t: t, files: modelFiles{m}, kubelet: `C:\var\lib\kubelet`, storage: `D:\causeway`}
	b.mkdir(b.kubelet)
	b.mkdir(b.storage)
	store := &modelStore{m: m, files: map[string][]byte{}}
	b.mkdir(modelFolders)
	b.Host = linksHost{startLinks(t, m, b.kubelet, store)}
	return b, m, store
}

func startLinks(t *testing.T, host linkHost, kubelet string, store recordStore) *links {
	t.Helper()
	var options []linkOption
	if m, ok := host.(*model); ok {
		d := newLinkDisks(m.disks, callDirectly, modelFolders, m.disks.records())
		d.pause, d.looks = func(ctx context.Context) error { return ctx.Err() }, 10
		options = append(options, withDisks(d))
	}
	l, err := newLinks(host, kubelet, store, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
