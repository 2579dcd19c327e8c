package mounter

import (
	"context"
	"fmt"
	"sync"
)

// locks are as many locks as there are keys. Its zero value has all of them free.
type locks[K comparable] struct {
	mu   sync.Mutex
	used map[K]*lock // those that somebody has or waits for
}

type lock struct {
	free  chan struct{} // holds one token while nobody has it
	users int
}

// lock waits until nobody else has the lock of any of keys. All callers must name keys in the same order. A lock that
// is free is to be had even if ctx has ended: what undoes something needs it then.
func (l *locks[K]) lock(ctx context.Context, keys ...K) (release func(), err error) {
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

func (l *locks[K]) wait(ctx context.Context, key K) error {
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
		return fmt.Errorf("wait for another call that uses the image: %w", ctx.Err())
	}
}

func (l *locks[K]) join(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.used[key]
	if !ok {
		k = &lock{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		if l.used == nil {
			l.used = map[K]*lock{}
		}
		l.used[key] = k
	}
	k.users++
	return k
}

func (l *locks[K]) leave(key K, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.used[key]
	if held {
		k.free <- struct{}{}
	}
	if k.users--; k.users == 0 {
		delete(l.used, key)
	}
}
