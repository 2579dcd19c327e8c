package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Mount returns the share with the directory of a volume, after a session has verified the
// credentials and the directory: a mount would join a session of the kernel that was opened with
// credentials which the server no longer accepts. The credentials are those of the request.
//
// The handle of a volume that an administrator has made is not an ID: its volume context has source
// and subDir.
func (b *Backend) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	o, notOurs := parseObject(volumeid.Volume, id)
	if err := checkContext(a.Context); notOurs == nil && err != nil {
		return mounter.Mount{}, err
	}
	if notOurs != nil {
		if a.Context[sourceKey] == "" {
			return mounter.Mount{}, fmt.Errorf("%w, and no source in the attributes of the volume", notOurs)
		}
		return b.mountStatic(ctx, a)
	}
	if err := checkAccess(a); err != nil {
		return mounter.Mount{}, err
	}
	volumeContext, err := b.verified(ctx, o, a)
	if err != nil {
		return mounter.Mount{}, err
	}
	for key, value := range a.Context {
		if volumeContext[key] != value {
			return mounter.Mount{}, fmt.Errorf("%w: volume %s has %s=%s, not %.128q", backend.ErrInvalid, id, key,
				volumeContext[key], value)
		}
	}
	return b.mountOf(o.source, volumeContext, a)
}

// contextKeys are the keys of a volume context.
var contextKeys = []string{sourceKey, subDirKey, encryptKey, outageKey}

// checkContext returns ErrInvalid for a volume context that no volume has.
func checkContext(volumeContext map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(volumeContext)) {
		if !slices.Contains(contextKeys, key) {
			return fmt.Errorf("%w: unknown attribute %.64q of the volume: must be one of %s", backend.ErrInvalid, key,
				strings.Join(contextKeys, ", "))
		}
		if _, isChoice := choices[key]; isChoice {
			if err := checkParameter(key, volumeContext[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

// verified opens a session, and returns the volume context of a volume. Credentials that must not
// read the records are enough to mount the directory in the volume context.
func (b *Backend) verified(ctx context.Context, o object, a backend.Access) (map[string]string, error) {
	s, err := b.session(ctx, o.source, a)
	if err != nil {
		return nil, err
	}
	defer s.close()
	v, err := s.liveVolume(ctx, o)
	if errors.Is(err, backend.ErrDenied) && len(a.Context) == len(contextKeys) {
		return a.Context, s.verify(ctx, a.Context[subDirKey])
	}
	if err != nil {
		return nil, err
	}
	return v.context(), s.verify(ctx, v.SubDir)
}

// session opens a session with the credentials of a request to a node.
func (b *Backend) session(ctx context.Context, source mounter.ShareSource, a backend.Access) (*store, error) {
	login, err := b.login(source, a.Secrets, a.Options)
	if err != nil {
		return nil, err
	}
	share, err := b.pool.Open(ctx, source, login, client.Calls)
	if err != nil {
		return nil, err
	}
	return &store{b, share, source}, nil
}

// verify returns an error if there is no directory of a volume that the credentials can reach.
func (s *store) verify(ctx context.Context, subDir string) error {
	path := s.source.Path
	if subDir != "" {
		path = s.path(subDir)
	}
	e, err := s.share.Stat(ctx, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %q on %s", backend.ErrPrecondition, path, s.share.Source)
	case err == nil && !e.Dir:
		return fmt.Errorf("%w: %q on %s is not a directory", backend.ErrPrecondition, path, s.share.Source)
	}
	return err
}

// mountStatic returns the mount of a volume that an administrator has made.
func (b *Backend) mountStatic(ctx context.Context, a backend.Access) (mounter.Mount, error) {
	if err := checkContext(a.Context); err != nil {
		return mounter.Mount{}, err
	}
	if err := checkAccess(a); err != nil {
		return mounter.Mount{}, err
	}
	source, err := parseSource(a.Context[sourceKey])
	if err != nil {
		return mounter.Mount{}, err
	}
	if subDir := a.Context[subDirKey]; subDir != "" {
		if err := checkSubDir(subDir); err != nil {
			return mounter.Mount{}, err
		}
	}
	s, err := b.session(ctx, source, a)
	if err != nil {
		return mounter.Mount{}, err
	}
	defer s.close()
	if err := s.verify(ctx, a.Context[subDirKey]); err != nil {
		return mounter.Mount{}, err
	}
	return b.mountOf(source, a.Context, a)
}

// Options that a mount has unless a request has others.
var defaultOptions = []string{"vers=3", "file_mode=0777", "dir_mode=0777"}

// mountOf returns the mount of a volume context.
func (b *Backend) mountOf(source mounter.ShareSource, volumeContext map[string]string,
	a backend.Access) (mounter.Mount, error) {
	if subDir := volumeContext[subDirKey]; subDir != "" {
		source.Path = strings.TrimPrefix(source.Path+"/"+subDir, "/")
	}
	options := slices.Clone(a.Options)
	for _, o := range defaultOptions {
		if !has(options, o) {
			options = append(options, o)
		}
	}
	add := []string{"mfsymlinks", "soft"} // mfsymlinks: all mounts of a volume must see a link as a link
	if volumeContext[outageKey] == "wait" {
		// hard is a property of the kernel's session with the share: the first mount decides, unless the
		// mount has a connection of its own.
		add = []string{"mfsymlinks", "hard", "nosharesock"}
	}
	if volumeContext[encryptKey] == "true" {
		add = append(add, "seal")
	}
	for _, o := range add {
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	if slices.Contains(options, "soft") && slices.Contains(options, "hard") {
		return mounter.Mount{}, fmt.Errorf("%w: mount options soft and hard: use the parameter outage", backend.ErrInvalid)
	}
	m := mounter.Mount{Kind: mounter.Share, Source: source.String(), Options: options, ReadOnly: a.ReadOnly}
	if l := secretsOf(a.Secrets); !l.Guest && !slices.Contains(options, "guest") {
		m.Credentials = mounter.Credentials{Username: l.User, Domain: l.Domain, Password: l.Password}
	} else if !slices.Contains(options, "guest") {
		m.Options = append(m.Options, "guest")
	}
	return m, nil
}

// has reports whether options have the option o, perhaps with another value.
func has(options []string, o string) bool {
	name, _, _ := strings.Cut(o, "=")
	return slices.ContainsFunc(options, func(other string) bool {
		n, _, _ := strings.Cut(other, "=")
		return n == name
	})
}

// Owned returns m with options that give all files to a group. The modes of a class keep the rights
// of others, and the group gets at least reading and writing.
func (b *Backend) Owned(m mounter.Mount, gid uint32) (mounter.Mount, error) {
	if has(m.Options, "gid") {
		return m, fmt.Errorf("%w: the class has the mount option gid, and the pod has an fsGroup: remove one",
			backend.ErrInvalid)
	}
	options := []string{fmt.Sprintf("gid=%d", gid), "forcegid"}
	for _, o := range m.Options {
		name, value, _ := strings.Cut(o, "=")
		add, isMode := map[string]uint64{"file_mode": 0o060, "dir_mode": 0o2070}[name]
		if isMode {
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil {
				return m, fmt.Errorf("%w: mount option %s is not an octal number", backend.ErrInvalid, name)
			}
			o = fmt.Sprintf("%s=%#o", name, mode|add)
		}
		if o != "forcegid" {
			options = append(options, o)
		}
	}
	m.Options = options
	return m, nil
}
