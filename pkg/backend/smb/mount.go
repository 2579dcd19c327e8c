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
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Mount returns the share with the directory of a volume, after a new session has verified the
// credentials and the directory: an older session, also that of the kernel, continues with
// credentials which the server no longer accepts. The credentials are those of the request.
//
// The handle of a volume that an administrator has made is not an ID: its volume context has source
// and subDir. With the mount option sec=krb5 and no ticket in the secret, the kernel uses the
// tickets of the host, which this process cannot verify. Tickets of the secret are written for the
// kernel: see keepTickets.
func (b *Backend) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	o, notOurs := records.ParseObject(volumeid.Volume, id)
	if notOurs != nil && a.Context[sourceKey] == "" {
		return mounter.Mount{}, fmt.Errorf("%w, and no source in the attributes of the volume", notOurs)
	}
	if err := checkContext(a.Context); err != nil {
		return mounter.Mount{}, err
	}
	if err := checkAccess(a); err != nil {
		return mounter.Mount{}, err
	}
	source := o.Source
	if notOurs != nil {
		var err error
		if source, err = parseSource(a.Context[sourceKey]); err != nil {
			return mounter.Mount{}, err
		}
	}
	login, err := b.login(source, a.Secrets, a.Options)
	if err != nil {
		return mounter.Mount{}, err
	}
	if slices.Contains(a.Options, kerberosOption) && !login.Kerberos() {
		return b.mountOf(source, a.Context, a, login)
	}
	share, err := b.openShare(ctx, source, login, client.Verify)
	if err != nil {
		return mounter.Mount{}, err
	}
	s := &store{Backend: b, share: share, source: source}
	defer s.close()
	volumeContext := a.Context
	var v *records.Volume // nil: of an administrator, or the credentials must not read its record
	if notOurs == nil {
		if v, volumeContext, err = s.contextOf(ctx, o, a); err != nil {
			return mounter.Mount{}, err
		}
	}
	if err := s.verify(ctx, v, volumeContext[subDirKey]); err != nil {
		return mounter.Mount{}, err
	}
	m, err := b.mountOf(source, volumeContext, a, login)
	if err == nil {
		err = b.keepTickets(login, m.Options)
	}
	return m, err
}

// contextOf returns a volume and the volume context in its record. Errors: backend.ErrNotFound;
// ErrInvalid if that of the request differs. Credentials that must not read the records are enough
// to mount the directory in a complete volume context; the volume is nil then.
func (s *store) contextOf(ctx context.Context, o records.Object,
	a backend.Access) (*records.Volume, map[string]string, error) {
	v, err := s.liveVolume(ctx, o)
	if errors.Is(err, backend.ErrDenied) && len(a.Context) == len(contextKeys) {
		if a.Context[sourceKey] != o.Source.String() {
			return nil, nil, fmt.Errorf("%w: volume %s is not in %.128q", backend.ErrInvalid, o, a.Context[sourceKey])
		}
		return nil, a.Context, nil
	}
	if err != nil {
		return nil, nil, err
	}
	want := v.Context()
	for _, key := range slices.Sorted(maps.Keys(a.Context)) {
		if want[key] != a.Context[key] {
			return nil, nil, fmt.Errorf("%w: volume %s has %s=%s, not %.128q", backend.ErrInvalid, o, key, want[key],
				a.Context[key])
		}
	}
	return v, want, nil
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
		if _, isChoice := records.Choices[key]; isChoice {
			if err := checkParameter(key, volumeContext[key]); err != nil {
				return err
			}
		}
	}
	if subDir := volumeContext[subDirKey]; subDir != "" {
		return checkSubDir(subDir)
	}
	return nil
}

// verify returns an error if the credentials cannot reach the directory of a volume, or if another
// volume has the directory now. v may be nil.
func (s *store) verify(ctx context.Context, v *records.Volume, subDir string) error {
	path := s.source.Path
	if subDir != "" {
		path = s.path(subDir)
	}
	e, err := s.share.Stat(ctx, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %q on %s", backend.ErrPrecondition, path, s.shareName())
	case err == nil && !e.Dir:
		return fmt.Errorf("%w: %q on %s is not a directory", backend.ErrPrecondition, path, s.shareName())
	case err != nil || v == nil || v.Shared:
		return err
	}
	newer, err := s.isNewer(ctx, v, e)
	if err == nil && newer { // a person has removed the directory of v, and made another, or a volume has it
		err = s.overlapsBy(ctx, v, records.Fold) // the stricter comparison of new volumes could refuse an old one
	}
	return ignore(err, backend.ErrDenied)
}

// supports reports whether a mount on this node can have an option.
func (b *Backend) supports(option string) bool {
	return b.cfg.Images == nil || b.cfg.Images.Supports(mounter.Share, "", []string{option}) == nil
}

// mountOf returns the mount of a volume context. The options of a request and the login stay as
// they are where the system does not have them: Mount refuses them.
func (b *Backend) mountOf(source mounter.ShareSource, volumeContext map[string]string, a backend.Access,
	login client.Login) (mounter.Mount, error) {
	if subDir := volumeContext[subDirKey]; subDir != "" {
		source.Path = strings.TrimPrefix(source.Path+"/"+subDir, "/")
	}
	options := slices.Clone(a.Options)
	for _, o := range defaultOptions {
		if !has(options, o) && b.supports(o) {
			options = append(options, o)
		}
	}
	options, err := withOutage(options, volumeContext[outageKey])
	if err != nil {
		return mounter.Mount{}, err
	}
	add := []string{"mfsymlinks"} // all mounts of a volume must see a link as a link
	if volumeContext[encryptKey] == "true" {
		add = append(add, "seal")
	}
	if !login.Guest && b.supports("sign") { // a guest has no key for signatures
		add = append(add, "sign")
	}
	m := mounter.Mount{Kind: mounter.Share, Source: source.String(), ReadOnly: a.ReadOnly}
	switch {
	case login.Guest:
		add = append(add, "guest")
	case login.Kerberos(): // the kernel asks the host for a ticket
		add = append(add, kerberosOption)
		m.Credentials.Username = login.User // the kernel refuses a mount without one
		if principal, err := login.Principal(); err != nil {
			return mounter.Mount{}, err
		} else if login.User == "" {
			m.Credentials.Username, _, _ = strings.Cut(principal, "@")
		}
	default:
		m.Credentials = mounter.Credentials{Username: login.User, Domain: login.Domain, Password: login.Password}
	}
	for _, o := range add {
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	m.Options = options
	return m, nil
}

// Owned returns m with options that give all files to a group. The modes of a class keep the rights
// of others, and the group gets at least reading and writing. The mount option gid of a class takes
// precedence over the group of a pod.
func (b *Backend) Owned(m mounter.Mount, gid uint32) (mounter.Mount, error) {
	if has(m.Options, "gid") {
		return m, nil
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
