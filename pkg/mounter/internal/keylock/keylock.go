// Package keylock has locks by key.
package keylock

import (
	"context"
	"fmt"
	"sync"
)

// Locks is a set of locks, with a lock for each key. Its zero value is usable, with all locks free.
type Locks[K comparable] struct {
	mu   sync.Mutex
	used map[K]*lock // the locks that a caller holds or waits for
}

type lock struct {
	free   chan struct{} // contains a token while the lock is free
	users  int           // callers that hold the lock or wait for it
	wanted func()        // called when a caller waits for the lock; nil without a LockUntilWanted
}

// LockUntilWanted takes the lock of a key for a caller that gives way: it reports false if another
// caller holds the lock, and the returned context ends with the cause wanted when another caller
// waits for the lock.
func (l *Locks[K]) LockUntilWanted(ctx context.Context, key K, wanted error) (held context.Context, release func(),
	ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, used := l.used[key]; used {
		return nil, nil, false
	}
	held, cancel := context.WithCancelCause(ctx)
	k := l.add(key)
	<-k.free
	k.users, k.wanted = 1, func() { cancel(wanted) }
	return held, func() { cancel(nil); l.leave(key, true) }, true
}

// Lock takes the locks of all keys. lock waits for each lock until no other caller holds the lock.
// All callers must pass keys in the same order. A free lock is granted even if ctx has ended,
// because a cleanup needs the lock then.
func (l *Locks[K]) Lock(ctx context.Context, keys ...K) (release func(), err error) {
	var held []K
	release = func() {
		for _, key := range held {
			l.leave(key, true)
		}
	}
	for _, key := range keys {
		if err := l.wait(ctx, key); err != nil {
			release()
			return nil, err
		}
		held = append(held, key)
	}
	return release, nil
}

func (l *Locks[K]) wait(ctx context.Context, key K) error {
	k := l.join(key)
	select {
	case <-k.free:
		return nil
	default:
	}
	select {
	case <-k.free:
		return nil
	case <-ctx.Done():
		l.leave(key, false)
		return fmt.Errorf("wait for another call that uses the same volume or server: %w", ctx.Err())
	}
}

func (l *Locks[K]) join(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.used[key]
	if !ok {
		k = l.add(key)
	}
	if k.users++; k.wanted != nil {
		k.wanted()
	}
	return k
}

// add adds a free lock. The caller holds mu.
func (l *Locks[K]) add(key K) *lock {
	k := &lock{free: make(chan struct{}, 1)}
	k.free <- struct{}{}
	if l.used == nil {
		l.used = map[K]*lock{}
	}
	l.used[key] = k
	return k
}

func (l *Locks[K]) leave(key K, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.used[key]
	if held {
		k.wanted = nil
		k.free <- struct{}{}
	}
	if k.users--; k.users == 0 {
		delete(l.used, key)
	}
}
