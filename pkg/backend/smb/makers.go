package smb

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// awaitMakers waits until every process that was making another volume directly in the source at
// the time of the call, in a directory that overlaps with that of v, has written its record or
// given up. Errors: backend.ErrBusy.
func (s *store) awaitMakers(ctx context.Context, v *records.Volume) error {
	entries, _, err := s.listMarkers(ctx, "")
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	makers := map[string]*maker{}
	for _, e := range entries {
		id, err := volumeid.Parse(e.Name)
		if err == nil && id.Kind == volumeid.Volume && !e.Dir && e.Name != v.Key {
			makers[e.Name] = &maker{}
		}
	}
	busy := ""
	done, err := s.process.Poll(ctx, func() (bool, error) {
		busy = ""
		for name, m := range makers { // all in each round: their ends are seen at the same time
			waits, err := s.waitsFor(ctx, v, name, m)
			if err != nil {
				return false, err
			}
			if waits {
				busy = name
			} else {
				delete(makers, name)
			}
		}
		return busy == "", nil
	})
	if err == nil && !done {
		err = fmt.Errorf("%w: another process of the driver is making the volume %s, or has ended meanwhile less "+
			"than %s ago", backend.ErrBusy, busy, s.process.Life)
	}
	return err
}

// maker is a process that is making a volume.
type maker struct {
	random string // of its marker; empty until that is written
}

// waitsFor reports whether v must wait for a process that makes another volume. Each process of the
// chain may have left a directory.
func (s *store) waitsFor(ctx context.Context, v *records.Volume, name string, m *maker) (bool, error) {
	dir := s.markers()
	chain, err := dir.Chain(ctx, name)
	if err != nil || len(chain) == 0 {
		return false, err
	}
	random := chain.Random() // empty while the marker is being written
	m.random = cmp.Or(m.random, random)
	ended := dir.HasEnded(chain)
	switch {
	case random != m.random || ended:
		return false, nil
	case random == "":
		return true, nil
	}
	return slices.ContainsFunc(chain.Dirs(), func(dir string) bool {
		return overlap(client.FoldName(dir), client.FoldName(v.SubDir))
	}), nil
}

// listMarkers lists the entries of a directory in that of markers, with the time of the newest.
func (s *store) listMarkers(ctx context.Context, dir string) (entries []client.Entry, newest time.Time, err error) {
	err = s.share.List(ctx, s.meta(records.WorkDir, dir), func(e client.Entry) error {
		entries = append(entries, e)
		if e.Modified.After(newest) {
			newest = e.Modified
		}
		return nil
	})
	return entries, newest, err
}
