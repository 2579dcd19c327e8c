package smb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// keepTickets writes the tickets of a secret into the directory of the host's credential caches,
// where cifs.upcall(8) finds them for the kernel: at the mount, and whenever the kernel connects
// again. The file is that of the user of the mount option cruid, or of root. Without such a
// directory keepTickets does nothing, and the tickets must be the host's.
//
// There is one file for each user. Tickets of another principal in it are backend.ErrPrecondition,
// because mounts of that principal would continue with the wrong identity.
func (b *Backend) keepTickets(login client.Login, options []string) error {
	if b.cfg.Krb5Caches == "" || len(login.CCache) == 0 {
		return nil
	}
	uid := 0
	for _, o := range options {
		if value, ok := strings.CutPrefix(o, "cruid="); ok {
			var err error
			if uid, err = strconv.Atoi(value); err != nil {
				return fmt.Errorf("%w: mount option %s: must be a number", backend.ErrInvalid, o)
			}
		}
	}
	principal, err := login.Principal()
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(b.cfg.Krb5Caches)
	if err != nil {
		return fmt.Errorf("%w: --smb-krb5-caches: %w", backend.ErrPrecondition, err)
	}
	defer dir.Close()
	b.tickets.Lock()
	defer b.tickets.Unlock()
	name := "krb5cc_" + strconv.Itoa(uid)
	old, err := regular.ReadFileIn(dir, name, maxTickets) // a user of the node may have put anything there
	switch {
	case err == nil && string(old) == string(login.CCache):
		return nil
	case err == nil:
		other, err := client.Login{CCache: old}.Principal()
		if err == nil && other != principal {
			return fmt.Errorf("%w: user %d of this node has the Kerberos tickets of %s: volumes of %s need another "+
				"mount option cruid", backend.ErrPrecondition, uid, other, principal)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", backend.ErrPrecondition, err)
	}
	if err := replaceTickets(dir, name, uid, login.CCache); err != nil {
		return fmt.Errorf("%w: write the Kerberos tickets of user %d: %w", backend.ErrUnavailable, uid, err)
	}
	return nil
}

// maxTickets is the maximum size of a credential cache in bytes.
const maxTickets = 1 << 20

// replaceTickets writes a credential cache that only its user can read. A temporary file that a
// process which has ended left is replaced.
func replaceTickets(dir *os.Root, name string, uid int, tickets []byte) error {
	temporary := name + ".causeway"
	if err := dir.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(tickets)
	if err == nil {
		err = f.Chown(uid, -1)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		err = errors.Join(err, dir.Remove(temporary))
	}
	return err
}
