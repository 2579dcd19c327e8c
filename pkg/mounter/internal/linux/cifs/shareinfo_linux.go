package cifs

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Registry remembers the filesystems that are shares, by device number. The number of an unmounted
// share can become that of another filesystem, so mountinfo decides.
type Registry struct {
	mu      sync.Mutex
	devices map[[2]uint32]bool
}

// Add records the device number of a share that is mounted.
func (s *Registry) Add(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices == nil {
		s.devices = map[[2]uint32]bool{}
	}
	s.devices[[2]uint32{major, minor}] = true
}

func (s *Registry) forget(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.devices, [2]uint32{major, minor})
}

// MayBeShare reports whether the filesystem of at may be a share.
func (s *Registry) MayBeShare(at tree.State) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return at.ID.Major == 0 && s.devices[[2]uint32{at.ID.Major, at.ID.Minor}]
}

// secrets remembers a digest of the credentials of each share, by path, so that a repeated mount
// changes nothing. The key of the digests is in memory only. The zero value is empty and usable.
type secrets struct {
	mu      sync.Mutex
	key     [32]byte
	digests map[string][32]byte
}

// same reports whether the share at path was mounted with these credentials by this process.
func (s *secrets) same(path string, c mounter.Credentials) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, ok := s.digests[path]
	return ok && digest == s.digest(c)
}

func (s *secrets) set(path string, c mounter.Credentials) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.digests == nil {
		s.digests = map[string][32]byte{}
		rand.Read(s.key[:])
	}
	s.digests[path] = s.digest(c)
}

func (s *secrets) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.digests, path)
}

func (s *secrets) digest(c mounter.Credentials) [32]byte {
	mac := hmac.New(sha256.New, s.key[:])
	for _, field := range []string{c.Username, c.Domain, c.Password} {
		mac.Write([]byte(strconv.Quote(field)))
	}
	return [32]byte(mac.Sum(nil))
}

// InfoOf returns the entry of mountinfo for a mount if the mount is one of a share. The result is
// nil for every other mount. The cost for mounts of other filesystems does not grow with the number
// of mounts.
func (sh *Shares) InfoOf(at tree.State) (*mountinfo.Info, error) {
	if !sh.Registry.MayBeShare(at) {
		return nil, nil
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.Mount
		return !found, found
	})
	if err != nil {
		return nil, err
	}
	if len(infos) == 0 || infos[0].FSType != FSType {
		if len(infos) > 0 {
			sh.Registry.forget(at.ID.Major, at.ID.Minor)
		}
		return nil, nil
	}
	return infos[0], nil
}

// shownFlags returns the ST_* flags of a mount in mountinfo.
func shownFlags(i *mountinfo.Info) int64 { return tree.OptionFlags(i.Options) }

// verifyShown is VerifyFlags for a mount of a share, which is in mountinfo. statfs(2) asks the
// server.
func verifyShown(i *mountinfo.Info, want int64) error {
	if got := shownFlags(i); got&tree.ManagedFlags != want {
		return fmt.Errorf("has the mount flags %#x, not %#x", got&tree.ManagedFlags, want)
	}
	return nil
}

// FlagsAt returns the ST_* flags of the mount at, which fd refers to.
func (sh *Shares) FlagsAt(fd int, at tree.State) (int64, error) {
	i, err := sh.InfoOf(at)
	if err != nil {
		return 0, err
	}
	if i != nil {
		return shownFlags(i), nil
	}
	return tree.FlagsOf(fd)
}

// VerifyFlagsAt is VerifyFlags for a mount that may be one of a share.
func (sh *Shares) VerifyFlagsAt(fd int, at tree.State, want int64) error {
	i, err := sh.InfoOf(at)
	if err != nil {
		return err
	}
	if i != nil {
		return verifyShown(i, want)
	}
	return tree.VerifyFlags(fd, want)
}

// VerifyRoot is verifyShown for the mount whose root is root.
func (sh *Shares) VerifyRoot(root int, want int64) error {
	at, err := tree.StatFD(root)
	if err != nil {
		return err
	}
	i, err := sh.InfoOf(at)
	if err == nil && i == nil {
		err = errors.New("mountinfo does not list the new mount of the share")
	}
	if err != nil {
		return err
	}
	return verifyShown(i, want)
}

// Mounted reports whether path shows the share of m.
func (sh *Shares) Mounted(m mounter.Mount, path string) (bool, error) {
	src, err := mounter.ParseShare(m.Source)
	if err != nil {
		return false, err
	}
	return sh.tree.Shows(path, func(at tree.State) (bool, error) {
		i, err := sh.InfoOf(at)
		return i != nil && showsShare(i, src), err
	})
}

// showsShare reports whether an entry of mountinfo is a mount of the whole of src.
func showsShare(i *mountinfo.Info, src mounter.ShareSource) bool {
	shown, err := parseShown(i.Source)
	return err == nil && i.Root == "/" && shown.Same(src)
}

// serverOf returns the server of a mount in mountinfo.
func serverOf(i *mountinfo.Info) string {
	shown, err := parseShown(i.Source)
	if err != nil { // of another program
		return i.Source
	}
	return shown.Server
}

// parseShown parses a source in mountinfo, where kernels differ in the slash at the end and in the
// direction of slashes.
func parseShown(source string) (mounter.ShareSource, error) {
	return mounter.ParseShare(strings.TrimRight(strings.ReplaceAll(source, `\`, "/"), "/"))
}

// superOption returns the value of an option of the filesystem of a mount in mountinfo, or "".
func superOption(i *mountinfo.Info, name string) string {
	for option := range strings.SplitSeq(i.VFSOptions, ",") {
		if value, ok := strings.CutPrefix(option, name+"="); ok {
			return value
		}
	}
	return ""
}

// verifySuper compares the options that have a value with those that mountinfo shows. The kernel
// shows no option of which it does not know the name, and modes without leading zeroes.
func verifySuper(i *mountinfo.Info, options []string) error {
	shown := map[string]string{}
	for option := range strings.SplitSeq(i.VFSOptions, ",") {
		name, value, _ := strings.Cut(option, "=")
		shown[name] = strings.TrimLeft(value, "0")
	}
	for _, o := range options {
		name, value, hasValue := strings.Cut(o, "=")
		switch name {
		case "uid", "gid", "file_mode", "dir_mode":
			if got, ok := shown[name]; hasValue && ok && got != strings.TrimLeft(value, "0") {
				return fmt.Errorf("is mounted with another %s", name)
			}
		}
	}
	return nil
}
