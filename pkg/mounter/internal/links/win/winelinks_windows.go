//go:build winetest

package win

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// machineLinks returns the links of Wine.
func machineLinks() links.LinkHost { return wineLinks{} }

// wineList is the directory of the list of links, for all programs of a prefix: a file for each
// link, with its path and its text. The list outlives a process, as links do.
const wineList = `C:\causeway-links`

// wineLinks are windowsLinks with the symbolic links of the machine outside of Wine, for tests of
// the driver only. Wine 8 reports success for CreateSymbolicLinkW and makes nothing, follows links
// that others have made, and shows each as the directory to which it leads. So programs of the
// machine make and remove the links, and a list has their texts.
type wineLinks struct{ windowsLinks }

// wineLock is held while a method uses the list.
var wineLock sync.Mutex

func (w wineLinks) Entry(path string) (links.LinkEntry, error) {
	wineLock.Lock()
	defer wineLock.Unlock()
	return w.lookLocked(path)
}

func (w wineLinks) lookLocked(path string) (links.LinkEntry, error) {
	switch link, err := w.listed(path); {
	case err != nil:
		return links.LinkEntry{}, pathError("look", path, err)
	case link != nil:
		return links.LinkEntry{links.DirLink, link.text}, nil
	}
	return w.windowsLinks.Entry(path)
}

// wineLink is an entry of the list.
type wineLink struct{ path, text string }

// listed returns the link at path, or nil. A link that another program has removed is taken out of
// the list.
func (w wineLinks) listed(path string) (*wineLink, error) {
	link, err := readWineLink(wineFile(path))
	if link == nil || err != nil {
		return nil, err
	}
	if isSame(path, link.text) { // without a program, which takes long
		return link, nil
	}
	unix, err := winetest.UnixPath(path)
	if err != nil {
		return nil, err
	}
	if isLink, err := winetest.Run(wineList, "test", "-L", unix); isLink || err != nil {
		return link, err
	}
	return nil, os.Remove(wineFile(path))
}

// isSame reports whether two paths lead to one file.
func isSame(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// wineFile returns the file of the list for a path.
func wineFile(path string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(path)))
	return filepath.Join(wineList, hex.EncodeToString(sum[:])+".link")
}

// readWineLink reads a file of the list. Without a file it returns nil.
func readWineLink(file string) (*wineLink, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	path, text, _ := strings.Cut(string(content), "\n")
	return &wineLink{path, text}, err
}

func (w wineLinks) Link(source, path string) error {
	wineLock.Lock()
	defer wineLock.Unlock()
	if _, err := w.lookLocked(path); !errors.Is(err, fs.ErrNotExist) {
		return pathError("link", path, errors.Join(fs.ErrExist, err))
	}
	to, err := winetest.UnixPath(source)
	if err != nil {
		return err
	}
	at, err := winetest.UnixPath(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(wineList, 0o700); err != nil {
		return err
	}
	// A process that is killed in between leaves an entry without a link, which listed removes.
	if err := os.WriteFile(wineFile(path), []byte(path+"\n"+source), 0o600); err != nil {
		return err
	}
	return w.run("link", path, "ln", "-sT", to, at)
}

// run runs a program of the machine that changes the entry at path.
func (wineLinks) run(op, path string, args ...string) error {
	ok, err := winetest.Run(wineList, args...)
	if err == nil && !ok {
		err = fmt.Errorf("%q failed", args)
	}
	return pathError(op, path, err)
}

func (w wineLinks) Unlink(path string) error {
	wineLock.Lock()
	defer wineLock.Unlock()
	link, err := w.listed(path)
	if err != nil {
		return pathError("unlink", path, err)
	}
	if link == nil {
		return w.windowsLinks.Unlink(path)
	}
	unix, err := winetest.UnixPath(path)
	if err != nil {
		return err
	}
	if err := w.run("unlink", path, "rm", unix); err != nil {
		return err
	}
	return os.Remove(wineFile(path))
}

func (w wineLinks) Rmdir(path string) error {
	wineLock.Lock()
	defer wineLock.Unlock()
	link, err := w.listed(path)
	if link != nil {
		err = fmt.Errorf("%w: it is %s", mounter.ErrPath, links.DirLink)
	}
	if err != nil {
		return pathError("rmdir", path, err)
	}
	return w.windowsLinks.Rmdir(path)
}

// Names has the names of dangling links, too, which Wine does not show.
func (w wineLinks) Names(path string) ([]string, error) {
	wineLock.Lock()
	defer wineLock.Unlock()
	names, err := w.windowsLinks.Names(path)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, name := range names {
		has[strings.ToLower(name)] = true
	}
	files, err := os.ReadDir(wineList)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".link" {
			continue
		}
		link, err := readWineLink(filepath.Join(wineList, file.Name()))
		if err != nil {
			return nil, err
		}
		if link == nil || !strings.EqualFold(filepath.Dir(link.path), path) ||
			has[strings.ToLower(filepath.Base(link.path))] {
			continue
		}
		switch link, err := w.listed(link.path); {
		case err != nil:
			return nil, err
		case link != nil:
			names = append(names, filepath.Base(link.path))
		}
	}
	return names, nil
}
