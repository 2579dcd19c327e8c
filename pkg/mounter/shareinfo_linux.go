package mounter

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
)

// shares remembers the filesystems that are shares, by device number. The number of an unmounted
// share can become that of another filesystem, so mountinfo decides.
type shares struct {
	mu      sync.Mutex
	devices map[[2]uint32]bool
}

func (s *shares) add(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices == nil {
		s.devices = map[[2]uint32]bool{}
	}
	s.devices[[2]uint32{major, minor}] = true
}

func (s *shares) forget(major, minor uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.devices, [2]uint32{major, minor})
}

// may reports whether the filesystem of at may be a share.
func (s *shares) may(at state) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return at.id.major == 0 && s.devices[[2]uint32{at.id.major, at.id.minor}]
}

// secrets remembers a digest of the credentials of each share, by path, so that a repeated mount
// changes nothing. The key of the digests is in memory only. The zero value is empty and usable.
type secrets struct {
	mu      sync.Mutex
	key     [32]byte
	digests map[string][32]byte
}

// same reports whether the share at path was mounted with these credentials by this process.
func (s *secrets) same(path string, c Credentials) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, ok := s.digests[path]
	return ok && digest == s.digest(c)
}

func (s *secrets) set(path string, c Credentials) {
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

func (s *secrets) digest(c Credentials) [32]byte {
	mac := hmac.New(sha256.New, s.key[:])
	for _, field := range []string{c.Username, c.Domain, c.Password} {
		mac.Write([]byte(strconv.Quote(field)))
	}
	return [32]byte(mac.Sum(nil))
}

// shareAt returns the entry of mountinfo for a mount if the mount is one of a share. The result is
// nil for every other mount. The cost for mounts of other filesystems does not grow with the number
// of mounts.
func (l *linux) shareAt(at state) (*mountinfo.Info, error) {
	if !l.shares.may(at) {
		return nil, nil
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == at.mount
		return !found, found
	})
	if err != nil {
		return nil, err
	}
	if len(infos) == 0 || infos[0].FSType != cifs {
		if len(infos) > 0 {
			l.shares.forget(at.id.major, at.id.minor)
		}
		return nil, nil
	}
	return infos[0], nil
}

// shownFlags returns the ST_* flags of a mount in mountinfo.
func shownFlags(i *mountinfo.Info) int64 { return optionFlags(i.Options) }

// verifyShown is verifyFlags for a mount of a share, which is in mountinfo. statfs(2) asks the
// server.
func verifyShown(i *mountinfo.Info, want int64) error {
	if got := shownFlags(i); got&managedFlags != want {
		return fmt.Errorf("has the mount flags %#x, not %#x", got&managedFlags, want)
	}
	return nil
}

// flagsAt returns the ST_* flags of the mount at, which fd refers to.
func (l *linux) flagsAt(fd int, at state) (int64, error) {
	i, err := l.shareAt(at)
	if err != nil {
		return 0, err
	}
	if i != nil {
		return shownFlags(i), nil
	}
	return flagsOf(fd)
}

// verifyFlagsAt is verifyFlags for a mount that may be one of a share.
func (l *linux) verifyFlagsAt(fd int, at state, want int64) error {
	i, err := l.shareAt(at)
	if err != nil {
		return err
	}
	if i != nil {
		return verifyShown(i, want)
	}
	return verifyFlags(fd, want)
}

// verifyRoot is verifyShown for the mount whose root is root.
func (l *linux) verifyRoot(root int, want int64) error {
	at, err := statFD(root)
	if err != nil {
		return err
	}
	i, err := l.shareAt(at)
	if err == nil && i == nil {
		err = errors.New("mountinfo does not list the new mount of the share")
	}
	if err != nil {
		return err
	}
	return verifyShown(i, want)
}

// shareMounted reports whether path shows the share of m.
func (l *linux) shareMounted(m Mount, path string) (bool, error) {
	src, err := ParseShare(m.Source)
	if err != nil {
		return false, err
	}
	return l.shows(path, func(at state) (bool, error) {
		i, err := l.shareAt(at)
		return i != nil && showsShare(i, src), err
	})
}

// showsShare reports whether an entry of mountinfo is a mount of the whole of src.
func showsShare(i *mountinfo.Info, src ShareSource) bool {
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
func parseShown(source string) (ShareSource, error) {
	return ParseShare(strings.TrimRight(strings.ReplaceAll(source, `\`, "/"), "/"))
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
