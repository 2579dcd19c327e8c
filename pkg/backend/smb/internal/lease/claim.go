package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// Claim is the exclusive right to change an object.
type Claim struct {
	// Keep makes Release leave the markers: the result of the last request is unknown.
	Keep bool

	dir   *Dir
	ctx   context.Context // ends with the call, or when the right may be lost
	chain Chain           // the own marker last
	own   marker          // without its Beat

	lose         context.CancelCauseFunc // ends ctx
	stopRenewals func()                  // waits for their end

	mu        sync.Mutex
	last      time.Time // when the server last wrote the marker, or earlier
	failure   error     // of the last renewal
	succeeded bool      // another process has succeeded the marker: the lease has ended
}

// Patience is the maximum time for which a call waits for the marker of another process.
const Patience = 2 * time.Second

// pollInterval is the time between two reads of a marker.
const pollInterval = 20 * time.Millisecond

// Poll calls attempt until it returns true or an error, for Patience. done is false after that
// time.
func (p *Process) Poll(ctx context.Context, attempt func() (done bool, err error)) (done bool, err error) {
	for start := p.clock.Now(); ; {
		if done, err := attempt(); done || err != nil {
			return done, err
		}
		if p.clock.Now().Sub(start) > Patience {
			return false, nil
		}
		if err := p.sleep(ctx, pollInterval); err != nil {
			return false, err
		}
	}
}

// Claim waits for the exclusive right to change an object. name is that of its marker, and object
// is for errors. made is the path in the store of the directory that the caller will make before
// its record, or "". Errors: backend.ErrBusy while another process has the right; those of Prepare;
// ErrNoMarker and ErrNoSuccessor.
func (d *Dir) Claim(ctx context.Context, name string, object fmt.Stringer, made string) (c *Claim, err error) {
	done, err := d.Poll(ctx, func() (bool, error) {
		c, err = d.TryClaim(ctx, name, made)
		return c != nil, err
	})
	if err == nil && !done {
		err = fmt.Errorf("%w: another process of the driver is changing %s, or has ended during the change "+
			"less than %s ago", backend.ErrBusy, object, d.Life)
	}
	return c, err
}

// Errors of a full share.
var (
	ErrNoMarker    = errors.New("no space for a marker")
	ErrNoSuccessor = errors.New("no space for the marker that succeeds that of a process which has ended")
)

// TryClaim returns nil if another process has the right, or when it has prepared the directory.
func (d *Dir) TryClaim(ctx context.Context, name, made string) (*Claim, error) {
	c := d.newClaim(ctx, made)
	head := d.path(name)
	err := d.Share.CreateMarker(c.ctx, head, c.own.encode())
	switch {
	case err == nil:
		c.startRenewals(Chain{c.link(head)})
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		c.lose(context.Canceled)
		return nil, d.prepareFor(ctx, name)
	case errors.Is(err, fs.ErrExist), errors.Is(err, client.ErrShared):
		c.lose(context.Canceled)
		return d.succeed(ctx, name, made)
	case errors.Is(err, backend.ErrExhausted):
		err = fmt.Errorf("%w: %w", ErrNoMarker, err)
	}
	err = c.Explain(ctx, err)
	c.lose(context.Canceled)
	return nil, err
}

// prepareFor makes the directory for a marker.
func (d *Dir) prepareFor(ctx context.Context, name string) error {
	if dir := path.Dir(name); dir != "." {
		err := d.Share.Mkdir(ctx, d.path(dir))
		if errors.Is(err, fs.ErrExist) {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.Prepare(ctx)
}

// succeed makes a successor of the last marker of an object, if its process has ended. It returns
// nil if not.
func (d *Dir) succeed(ctx context.Context, name, made string) (*Claim, error) {
	chain, err := d.Chain(ctx, name)
	if err != nil || len(chain) == 0 || !d.HasEnded(chain) {
		return nil, err
	}
	c := d.newClaim(ctx, made)
	next := c.link(chain[len(chain)-1].successor(chain[0].path))
	err = d.Share.CreateMarker(c.ctx, next.path, []byte(next.content))
	if err == nil {
		all := append(slices.Clip(chain), next)
		again, e := d.Chain(c.ctx, name)
		if e == nil && again.equal(all) {
			c.startRenewals(all)
			return c, nil
		}
		err = errors.Join(e, d.Share.Remove(c.ctx, next.path)) // the chain was released or renewed meanwhile
	}
	err = c.Explain(ctx, err)
	c.lose(context.Canceled)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, client.ErrShared):
		return nil, nil
	case errors.Is(err, backend.ErrExhausted):
		return nil, fmt.Errorf("%w: %w", ErrNoSuccessor, err)
	}
	return nil, err
}

// newClaim returns a claim for a marker that is created from now on. The caller calls startRenewals
// when the marker exists, or lose.
func (d *Dir) newClaim(ctx context.Context, made string) *Claim {
	c := &Claim{dir: d, own: marker{Owner: d.owner, Random: Random(), Dir: made}, last: d.clock.Now()}
	c.ctx, c.lose = c.guard(ctx)
	return c
}

// guard returns a context for operations of the claim, which ends when the lease ends. The caller
// calls end.
func (c *Claim) guard(ctx context.Context) (guarded context.Context, end context.CancelCauseFunc) {
	guarded, end = context.WithCancelCause(client.WithLease(ctx, c.Valid))
	go func() {
		for guarded.Err() == nil {
			if left := c.left(); left > 0 {
				c.dir.sleep(guarded, left)
			} else {
				end(c.expired())
			}
		}
	}()
	return guarded, end
}

func (c *Claim) expired() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: the marker of this process could not be renewed: %w", backend.ErrUnavailable,
		cmp.Or(c.failure, errors.New("no time for it")))
}

// left returns the time until the end of the lease.
func (c *Claim) left() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.succeeded {
		return 0
	}
	return c.dir.Lease - c.dir.age(c.last)
}

// extend extends the lease, which has not ended, after a renewal that began at a time.
func (c *Claim) extend(began time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure = err; err == nil && c.dir.age(c.last) < c.dir.Lease {
		c.last = began
	}
}

// Valid reports whether no other process can have succeeded the marker yet.
func (c *Claim) Valid() bool { return c.left() > 0 }

// link returns the marker of the claim as it is created.
func (c *Claim) link(path string) link {
	return link{path: path, content: string(c.own.encode()), random: c.own.Random}
}

// startRenewals begins to renew the marker, which is the last of chain. The end of the renewals
// lets a renewal that has begun finish: its session is shared with other calls, and a request that
// is given up ends the session.
func (c *Claim) startRenewals(chain Chain) {
	c.chain = chain
	pause, stop := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.renewUntil(pause)
	}()
	c.stopRenewals = func() {
		stop()
		<-ended
	}
}

// Context returns a context that ends with the call, and when the right may be lost. Operations of
// package client under it are permitted as long as the claim is valid.
func (c *Claim) Context() context.Context { return c.ctx }

// Head returns the path on the share of the first marker of the object.
func (c *Claim) Head() string { return c.chain[0].path }

// Succeeds reports whether another process has ended with the right.
func (c *Claim) Succeeds() bool { return len(c.chain) > 1 }

// Began returns the path in the store of the directory that a process which has ended may have made
// before its record, or "".
func (c *Claim) Began() string {
	dirs := c.chain[:len(c.chain)-1].Dirs()
	if len(dirs) == 0 {
		return ""
	}
	return dirs[len(dirs)-1]
}

// renewUntil renews the marker until the context of the pauses between two renewals ends.
func (c *Claim) renewUntil(pause context.Context) {
	var share Share
	for m := c.own; c.dir.sleep(pause, c.dir.Life/10) == nil; {
		m.Beat++
		now := c.dir.clock.Now()
		limited, end := c.dir.withTimeout(c.ctx, c.dir.Life/3)
		var err error
		if share == nil {
			var release func()
			if share, release, err = c.dir.OpenShare(limited); err == nil {
				defer release()
			} else {
				share = nil
			}
		}
		if err == nil {
			err = c.renew(limited, share, m)
		}
		c.extend(now, err)
		end()
	}
}

// renew writes the marker, and confirms the right then: a process that has created a successor
// before finds the new content, or this process finds the successor.
func (c *Claim) renew(ctx context.Context, share Share, m marker) error {
	own := c.chain[len(c.chain)-1]
	err := share.Rewrite(ctx, own.path, maxMarker, func(old []byte) error {
		if parse(string(old)).Random != c.own.Random {
			return errLost
		}
		return nil
	}, m.encode())
	if errors.Is(err, errLost) || errors.Is(err, fs.ErrNotExist) {
		return c.lost()
	} else if err != nil {
		return err
	}
	return c.Confirm(ctx, share)
}

var errLost = fmt.Errorf("%w: another process has succeeded the marker of this process", backend.ErrUnavailable)

// lost ends the lease and the context of the claim for good.
func (c *Claim) lost() error {
	c.mu.Lock()
	c.succeeded = true
	c.mu.Unlock()
	c.lose(errLost)
	return errLost
}

// Confirm asks the server whether this process still has the right: the clocks of a machine that
// was stopped may not show that. Errors: backend.ErrUnavailable.
//
// A marker that is gone never comes back. So if there was no successor, and all markers of the
// chain are there afterwards, the process had the right when it looked for the successor.
func (c *Claim) Confirm(ctx context.Context, share Share) error {
	own := c.chain[len(c.chain)-1]
	switch _, err := share.Stat(ctx, own.successor(c.Head())); {
	case err == nil:
		return c.lost()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	d := *c.dir
	d.Share = share
	for _, l := range c.chain {
		content, err := d.read(ctx, l.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return c.lost()
		case err != nil:
			return err
		case parse(string(content)).Random != l.random:
			return c.lost()
		}
	}
	return nil
}

// Release gives the right back. The first marker goes first: then no process can succeed the
// others. With Keep the markers stay: a later process that succeeds them knows of this one.
func (c *Claim) Release(ctx context.Context) {
	c.Stop()
	if c.Keep || !c.Valid() { // invalid: another process may have succeeded it, and removes the chain
		return
	}
	if ctx.Err() != nil {
		var end func()
		ctx, end = c.dir.withTimeout(context.WithoutCancel(ctx), c.dir.Life/10)
		defer end()
	}
	ctx, end := c.guard(ctx)
	defer end(context.Canceled)
	if c.Confirm(ctx, c.dir.Share) != nil { // the head may be that of another process: clocks can stop
		return
	}
	for _, l := range c.chain {
		if err := c.dir.remove(ctx, l.path); err != nil {
			return // it is succeeded when it has not changed for long enough
		}
	}
}

// Stop ends the renewals, and leaves the markers. It waits for a renewal that has begun.
func (c *Claim) Stop() {
	c.stopRenewals()
	c.lose(context.Canceled)
}

// Explain returns the reason for which the right was lost, if that is the reason of err, the error
// of a change under the context of c. ctx is that of the call.
func (c *Claim) Explain(ctx context.Context, err error) error {
	if cause := context.Cause(c.ctx); cause != nil && ctx.Err() == nil && err != nil {
		return cause
	}
	return err
}
