package smb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// A marker is a file on the share that gives one process the right to change an object. A process
// that holds a marker rewrites it again and again. Other processes watch a marker by their own
// clock: clocks are never compared. When a marker has not changed for the life of markers, its
// process has ended, and the marker is succeeded: the successor is a file whose name contains the
// random number of the marker, so that of several processes exactly one succeeds. The last marker
// of such a chain counts.

// marker is the content of a marker file.
type marker struct {
	Owner  string `json:"owner"`
	Random string `json:"random"`
	Dir    string `json:"dir,omitempty"` // path in the store of the directory that the process makes before its record
	Beat   int    `json:"beat"`
}

// sighting is a marker of another process, and the time since when its content is the same.
type sighting struct {
	content string
	since   time.Time
}

// claim is the exclusive right to change an object.
type claim struct {
	*store
	ctx   context.Context // ends with the call, or when the right may be lost
	files []string        // paths of the chain, the own marker last
	own   marker          // without its Beat
	began string          // path in the store of the directory that a process which has ended may have made
	keep  bool            // release leaves the markers: the result of the last request is unknown

	stop func()
	lose context.CancelCauseFunc // ends ctx
	mu   sync.Mutex
	last time.Time // when the server last wrote the marker, or earlier
}

// patience is the maximum time for which a call waits for the marker of another process.
const patience = 2 * time.Second

// claim waits for the exclusive right to change an object. dir is the path in the store of the
// directory that the caller will make before its record, or "". Errors: backend.ErrBusy while
// another process has the right; errUnprepared.
func (s *store) claim(ctx context.Context, o object, dir string) (*claim, error) {
	deadline := time.Now().Add(patience)
	for {
		c, err := s.tryClaim(ctx, o.key, dir)
		if c != nil || err != nil {
			return c, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: another process of the driver is changing %s, or has ended during the change "+
				"less than %s ago", backend.ErrBusy, o, s.life)
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// Errors of a full share: there is no space for a marker.
var (
	errNoMarker    = errors.New("no space for a marker")
	errNoSuccessor = errors.New("no space for the marker that succeeds that of a process which has ended")
)

// explainFull makes the error of a claim on a full share one that the caller repeats, if an earlier
// attempt to make o may have left something: a final error must not.
func (s *store) explainFull(ctx context.Context, o object, err error) error {
	if errors.Is(err, errNoSuccessor) || (errors.Is(err, errNoMarker) && s.hasRecord(ctx, o.key)) {
		return fmt.Errorf("%w: free space on the share, so that an earlier attempt can be completed: %s",
			backend.ErrUnavailable, err.Error())
	}
	return err
}

// hasRecord reports whether an object has a record, or may have one.
func (s *store) hasRecord(ctx context.Context, key string) bool {
	for _, dir := range []string{volumesDir, snapshotsDir} {
		if _, err := s.share.Stat(ctx, s.recordPath(dir, key)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// errUnprepared reports a source without the directories of its store. Every volume and snapshot of
// the source was made after them, so they are lost, or the server has not mounted a filesystem.
var errUnprepared = fmt.Errorf("%w: the source has no directory %s/%s: mount its filesystem on the server, or make "+
	"the directory if all volumes of the source are gone", backend.ErrPrecondition, metaDir, workDir)

// tryClaim returns nil if another process has the right.
func (s *store) tryClaim(ctx context.Context, name, dir string) (*claim, error) {
	m := marker{Owner: s.owner, Random: random(), Dir: dir}
	head := s.meta(workDir, name)
	begin := time.Now()
	err := s.share.CreateMarker(ctx, head, m.encode())
	switch {
	case err == nil:
		s.saw()
		return s.hold(ctx, m, begin, head), nil
	case errors.Is(err, fs.ErrNotExist) && path.Dir(name) != ".":
		err = ignore(s.share.Mkdir(ctx, s.meta(workDir, path.Dir(name))), fs.ErrExist)
		if errors.Is(err, fs.ErrNotExist) {
			err = errUnprepared
		}
		return nil, err
	case errors.Is(err, fs.ErrNotExist) && s.mayPrepare:
		return nil, s.prepare(ctx)
	case errors.Is(err, fs.ErrNotExist):
		return nil, errUnprepared
	case errors.Is(err, backend.ErrExhausted):
		return nil, fmt.Errorf("%w: %w", errNoMarker, err)
	case !errors.Is(err, fs.ErrExist) && !errors.Is(err, client.ErrShared):
		return nil, err
	}
	chain, err := s.chain(ctx, head)
	if err != nil || len(chain) == 0 || !s.hasEnded(chain[len(chain)-1]) {
		return nil, err
	}
	next := chain[len(chain)-1].successor(head)
	begin = time.Now()
	switch err := s.share.CreateMarker(ctx, next, m.encode()); {
	case errors.Is(err, fs.ErrExist), errors.Is(err, client.ErrShared):
		return nil, nil
	case errors.Is(err, backend.ErrExhausted):
		return nil, fmt.Errorf("%w: %w", errNoSuccessor, err)
	case err != nil:
		return nil, err
	}
	again, err := s.chain(ctx, head)
	if err != nil || len(again) != len(chain)+1 || again[0].content != chain[0].content {
		return nil, errors.Join(err, s.share.Remove(ctx, next)) // the chain was released meanwhile
	}
	var files []string
	for _, l := range again {
		files = append(files, l.path)
	}
	c := s.hold(ctx, m, begin, files...)
	for _, l := range chain {
		c.began = cmp.Or(l.parse().Dir, c.began)
	}
	return c, nil
}

// awaitMakers waits until every process that was making another volume directly in the source at
// the time of the call, in a directory that overlaps with that of v, has written its record or
// given up. Errors: backend.ErrBusy.
func (s *store) awaitMakers(ctx context.Context, v *volume) error {
	entries, _, err := s.markers(ctx, "")
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	makers := map[string]*maker{}
	for _, e := range entries {
		id, err := volumeid.Parse(e.Name)
		if err == nil && id.Kind == volumeid.Volume && !e.Dir && e.Name != v.key {
			makers[e.Name] = &maker{}
		}
	}
	deadline := time.Now().Add(patience)
	for {
		busy := ""
		for name, m := range makers { // all in each round: their ends are seen at the same time
			waits, err := s.waitsFor(ctx, v, name, m)
			if err != nil {
				return err
			}
			if waits {
				busy = name
			} else {
				delete(makers, name)
			}
		}
		switch {
		case busy == "":
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%w: another process of the driver is making the volume %s, or has ended meanwhile less "+
				"than %s ago", backend.ErrBusy, busy, s.life)
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// maker is a process that is making a volume.
type maker struct {
	random string // of its marker; empty until that is written
}

// waitsFor reports whether v must wait for a process that makes another volume. Each process of the
// chain may have left a directory.
func (s *store) waitsFor(ctx context.Context, v *volume, name string, m *maker) (bool, error) {
	chain, err := s.chain(ctx, s.meta(workDir, name))
	if err != nil || len(chain) == 0 {
		return false, err
	}
	last := chain[len(chain)-1]
	random := last.parse().Random // empty while the marker is being written
	m.random = cmp.Or(m.random, random)
	ended := s.hasEnded(last)
	switch {
	case random != m.random || ended:
		return false, nil
	case random == "":
		return true, nil
	}
	return slices.ContainsFunc(chain, func(l link) bool {
		dir := l.parse().Dir
		return dir != "" && overlap(fold(dir), fold(v.SubDir))
	}), nil
}

// pause waits between two looks at a marker.
func pause(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// link is a marker file of a chain.
type link struct {
	path    string
	content string
}

// successor returns the path of the marker that succeeds this one.
func (l link) successor(head string) string { return head + "~" + l.parse().Random }

// parse returns the marker. It is empty if its process has ended between the creation and the
// write.
func (l link) parse() (m marker) {
	if json.Unmarshal([]byte(l.content), &m) != nil || strings.Trim(m.Random, "0123456789abcdef") != "" {
		return marker{}
	}
	return m
}

// chain reads the markers of an object, the last one counts.
func (s *store) chain(ctx context.Context, head string) (chain []link, err error) {
	for next := head; len(chain) < maxChain; {
		var content []byte
		err := retry(ctx, func() (err error) {
			content, err = s.share.Read(ctx, next, maxRecord)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			return chain, nil
		} else if err != nil {
			return nil, err
		}
		l := link{next, string(content)}
		chain = append(chain, l)
		next = l.successor(head)
	}
	return nil, fmt.Errorf("%w: %s has more than %d successors: remove these files while no controller runs",
		backend.ErrNotReady, head, maxChain)
}

// maxChain is the maximum length of a chain. Each link is a process that ended during the change of
// the same object.
const maxChain = 100

// hasEnded reports whether a marker has not changed for the life of markers.
func (s *store) hasEnded(l link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.source.String() + "\x00" + l.path
	seen, ok := s.seen[key]
	if !ok || seen.content != l.content {
		if len(s.seen) >= maxSeen {
			clear(s.seen)
		}
		s.seen[key] = sighting{l.content, time.Now()}
		return false
	}
	return time.Since(seen.since) > s.life
}

// maxSeen is the maximum number of markers that a process remembers.
const maxSeen = 10000

func (m marker) encode() []byte {
	content, err := json.Marshal(m)
	if err != nil { // strings and a number have a JSON form
		panic(err)
	}
	return content
}

// hold keeps the marker m, which is the last of files and was created after begin.
func (s *store) hold(ctx context.Context, m marker, begin time.Time, files ...string) *claim {
	c := &claim{store: s, files: files, own: m, last: begin}
	ctx, lose := context.WithCancelCause(client.WithLease(ctx, c.valid))
	c.ctx, c.lose = ctx, lose
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.beat(ctx)
	}()
	c.stop = func() {
		lose(context.Canceled)
		<-ended
	}
	return c
}

// beat rewrites the marker until ctx ends, which lose ends. A copy must not delay the requests, so
// they have the session of calls.
func (c *claim) beat(ctx context.Context) {
	var share *client.Share
	for m := c.own; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.life / 10):
		}
		now := time.Now()
		m.Beat++
		limited, end := context.WithTimeout(ctx, c.life/3)
		var err error
		if share == nil {
			if share, err = c.pool.Open(limited, c.source, c.login, client.Calls); err == nil {
				defer share.Release()
			}
		}
		if err == nil {
			err = c.confirm(limited, share)
		}
		if err == nil {
			err = share.Overwrite(limited, c.files[len(c.files)-1], m.encode())
		}
		end()
		if err == nil {
			c.mu.Lock()
			c.last = now
			c.mu.Unlock()
		}
		if !c.valid() {
			c.lose(fmt.Errorf("%w: the marker of this process could not be renewed: %w", backend.ErrUnavailable, err))
		}
	}
}

// confirm asks the server whether this process still has the right: the clocks of a machine that
// was stopped may not show that. Errors: backend.ErrUnavailable.
func (c *claim) confirm(ctx context.Context, share *client.Share) error {
	own := link{c.files[len(c.files)-1], string(c.own.encode())}
	_, err := share.Stat(ctx, own.successor(c.files[0]))
	lost := err == nil
	if errors.Is(err, fs.ErrNotExist) { // or the next process has ended, and has removed all markers
		var content []byte
		content, err = share.Read(ctx, own.path, maxRecord)
		found := link{own.path, string(content)}.parse()
		lost = errors.Is(err, fs.ErrNotExist) || (err == nil && found.Random != c.own.Random)
	}
	if lost {
		err = fmt.Errorf("%w: another process has succeeded the marker of this process", backend.ErrUnavailable)
		c.lose(err)
	}
	return err
}

// claimKey is the key of the claim in the context of a change.
type claimKey struct{}

// confirm asks the server whether this process still has the right to the change of ctx, before a
// step that would harm the object if another process had the right.
func (s *store) confirm(ctx context.Context) error {
	if c, ok := ctx.Value(claimKey{}).(*claim); ok {
		return c.confirm(ctx, s.share)
	}
	return nil
}

// valid reports whether no other process can have succeeded the marker yet.
func (c *claim) valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return age(c.last) < c.lease
}

// age returns the time since t by the clock that shows more: the monotonic clock stands still while
// the machine is suspended.
func age(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// release gives the right back. The first marker goes first: then no process can succeed the
// others. With keep the markers stay: a later process that succeeds them knows of this one.
func (c *claim) release(ctx context.Context) {
	c.stop()
	if c.keep || !c.valid() { // invalid: another process may have succeeded it, and removes the chain
		return
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), c.life/10)
		defer cancel()
	}
	ctx = client.WithLease(ctx, c.valid)
	for _, file := range c.files {
		if err := c.remove(ctx, file); err != nil {
			return // it is succeeded when it has not changed for long enough
		}
	}
}

// exclusively calls change while this process has the exclusive right to change an object. The
// context of change ends with ctx, and when the right may be lost.
func (s *store) exclusively(ctx context.Context, o object, change func(ctx context.Context) error) error {
	return s.claimed(ctx, o, "", func(c *claim) error { return change(c.ctx) })
}

// claimed is exclusively for a change that needs to know of an earlier process. dir is as for
// claim.
func (s *store) claimed(ctx context.Context, o object, dir string, change func(c *claim) error) error {
	c, err := s.claim(ctx, o, dir)
	if err != nil {
		return err
	}
	defer c.release(ctx)
	c.ctx = context.WithValue(c.ctx, claimKey{}, c)
	return c.explain(ctx, classified(change(c)))
}

// classified gives an error of package client without a class the class of an error that the caller
// repeats: the step that failed depends on a state that another process, or a person, has changed.
func classified(err error) error {
	for _, e := range []error{fs.ErrExist, fs.ErrNotExist} {
		if errors.Is(err, e) && !hasClass(err) {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}
	return err
}

func hasClass(err error) bool {
	for _, class := range []error{backend.ErrUnavailable, backend.ErrPrecondition, backend.ErrBusy, backend.ErrInUse,
		backend.ErrExists, backend.ErrNotFound, backend.ErrNotReady, backend.ErrInvalid, context.Canceled,
		context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// explain returns the reason for which the right was lost, if that is the reason of err, the error
// of a change under the context of c. ctx is that of the call.
func (c *claim) explain(ctx context.Context, err error) error {
	if cause := context.Cause(c.ctx); cause != nil && ctx.Err() == nil && err != nil {
		return cause
	}
	return err
}

// reading calls copyData while other processes know that this process copies the object from to
// the object to. The context of copyData ends with ctx, and when they may no longer know.
func (s *store) reading(ctx context.Context, from, to object, copyData func(ctx context.Context) error) error {
	name := readersOf(from) + "/" + to.key
	for i := 0; ; i++ {
		c, err := s.tryClaim(ctx, name, "")
		switch {
		case err != nil:
			return err
		case c != nil:
			defer c.release(ctx)
			return c.explain(ctx, copyData(c.ctx))
		case i == 2: // of a process that has ended: this process has the exclusive right to make the object
			if err := s.remove(ctx, s.meta(workDir, name)); err != nil {
				return err
			}
		case i > 10:
			return fmt.Errorf("%w: another process of the driver copies %s", backend.ErrBusy, from)
		}
	}
}

// readersOf returns the directory of the markers of copies of an object. It stays when the copies
// have ended, until the object is deleted.
func readersOf(o object) string { return o.key + "+" }

// readers returns ErrInUse while a process copies an object. Markers of processes that have ended
// do not count. copied reports whether there is a directory of such markers.
func (s *store) readers(ctx context.Context, o object) (copied bool, err error) {
	var names []string
	err = s.share.List(ctx, s.meta(workDir, readersOf(o)), func(e client.Entry) error {
		if !strings.Contains(e.Name, "~") {
			names = append(names, e.Name)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return true, err
	}
	for _, name := range names {
		head := s.meta(workDir, readersOf(o), name)
		chain, err := s.chain(ctx, head)
		switch {
		case err != nil:
			return true, err
		case len(chain) == 0:
		case s.hasEnded(chain[len(chain)-1]):
			for _, l := range chain {
				if err := s.remove(ctx, l.path); err != nil {
					return true, err
				}
			}
		default:
			return true, fmt.Errorf("%w: %s is being copied to %s", backend.ErrInUse, o, name)
		}
	}
	return true, nil
}
