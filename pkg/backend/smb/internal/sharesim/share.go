package sharesim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// Sharing modes and rights as in package client: see its library.
var (
	attributes = access{}
	reading    = access{read: true}
	writing    = access{write: true}
	both       = access{read: true, write: true}
	removing   = access{remove: true}
	everything = access{true, true, true}
)

// do runs an operation with a limit in a session.
func (p *Process) do(ctx context.Context, op, path string,
	operation func(ctx context.Context, s *session) error) error {
	if p.Err() != nil {
		return ErrDead
	}
	s := p.live()
	if p.Before != nil {
		if err := p.Before(op, path); err != nil {
			s.abandon()
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.AfterFunc(requestLimit, cancel)()
	err := operation(limited, p.live())
	switch {
	case err == nil && p.After != nil:
		if err := p.After(op, path); err != nil {
			s.abandon()
			return err
		}
	case ctx.Err() == nil && errors.Is(err, context.Canceled):
		err = fmt.Errorf("%w: the server does not answer", backend.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", op, path, err)
	}
	return nil
}

// open opens a file.
func (s *session) open(ctx context.Context, path string, create bool, does, shares access) (h *handle, err error) {
	err = s.send(ctx, "open", path, func(s *session) (err error) {
		opened, err := s.process.server.open(path, create, does, shares)
		if err == nil {
			s.handles[opened] = true
			h = opened
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (s *session) close(ctx context.Context, h *handle) error {
	return s.send(ctx, "close", h.path, func(s *session) error {
		delete(s.handles, h)
		s.process.server.close(h)
		return nil
	})
}

// with opens a file, runs an operation and closes the file.
func (s *session) with(ctx context.Context, path string, create bool, does, shares access,
	operation func(h *handle) error) error {
	h, err := s.open(ctx, path, create, does, shares)
	if err != nil {
		return err
	}
	err = operation(h)
	return errors.Join(err, s.close(ctx, h))
}

func (s *session) read(ctx context.Context, h *handle) (content []byte, err error) {
	err = s.send(ctx, "read", h.path, func(*session) error {
		content = slices.Clone(h.node.content)
		return nil
	})
	return content, err
}

func (s *session) write(ctx context.Context, h *handle, content []byte) error {
	return s.send(ctx, "write", h.path, func(s *session) error {
		s.process.server.write(h, content)
		return nil
	})
}

func (s *session) remove(ctx context.Context, path string) error {
	return s.with(ctx, path, false, removing, removing, func(h *handle) error {
		return s.send(ctx, "mark for removal", path, func(*session) error {
			if len(h.node.entries) > 0 {
				return client.ErrNotEmpty
			}
			h.node.removed = true
			return nil
		})
	})
}

// Release does nothing.
func (p *Process) Release() {}

// Mkdir is that of client.Share, as are the methods below.
func (p *Process) Mkdir(ctx context.Context, path string) error {
	return p.do(ctx, "make directory", path, func(ctx context.Context, s *session) error {
		return s.send(ctx, "make directory", path, func(s *session) error {
			_, err := s.process.server.add(path, true)
			return err
		})
	})
}

// Stat describes an entry.
func (p *Process) Stat(ctx context.Context, path string) (e client.Entry, err error) {
	err = p.do(ctx, "look up", path, func(ctx context.Context, s *session) error {
		return s.with(ctx, path, false, attributes, everything, func(h *handle) error {
			p.server.mu.Lock()
			defer p.server.mu.Unlock()
			e = h.node.entry() // part of the answer to the open
			return nil
		})
	})
	return e, err
}

// List calls each for all entries of a directory.
func (p *Process) List(ctx context.Context, dir string, each func(client.Entry) error) error {
	var entries []client.Entry
	err := p.do(ctx, "list", dir, func(ctx context.Context, s *session) error {
		return s.with(ctx, dir, false, attributes, everything, func(h *handle) error {
			return s.send(ctx, "list", dir, func(*session) error {
				entries = nil
				for _, n := range h.node.entries {
					entries = append(entries, n.entry())
				}
				return nil
			})
		})
	})
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b client.Entry) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range entries {
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

// Create makes a file.
func (p *Process) Create(ctx context.Context, path string, content []byte) error {
	return p.do(ctx, "create", path, func(ctx context.Context, s *session) error {
		return s.with(ctx, path, true, writing, both, func(h *handle) error { return s.write(ctx, h, content) })
	})
}

// CreateMarker makes a file.
func (p *Process) CreateMarker(ctx context.Context, path string, content []byte) error {
	return p.Create(ctx, path, content)
}

// Rewrite writes a file after a check.
func (p *Process) Rewrite(ctx context.Context, path string, _ int64, check func(old []byte) error,
	content []byte) error {
	var refused error
	err := p.do(ctx, "write", path, func(ctx context.Context, s *session) error {
		return s.with(ctx, path, false, both, both, func(h *handle) error {
			old, err := s.read(ctx, h)
			if err != nil {
				return err
			}
			if refused = check(old); refused != nil {
				return nil
			}
			return s.write(ctx, h, content)
		})
	})
	if err == nil {
		err = refused
	}
	return err
}

// Read returns the content of a file.
func (p *Process) Read(ctx context.Context, path string, _ int64) (content []byte, err error) {
	err = p.do(ctx, "read", path, func(ctx context.Context, s *session) error {
		return s.with(ctx, path, false, reading, both, func(h *handle) (err error) {
			content, err = s.read(ctx, h)
			return err
		})
	})
	return content, err
}

// Rename moves a file or a directory.
func (p *Process) Rename(ctx context.Context, from, to string) error {
	return p.do(ctx, "move to "+to, from, func(ctx context.Context, s *session) error {
		return s.with(ctx, from, false, removing, removing, func(h *handle) error {
			return s.send(ctx, "move to "+to, from, func(s *session) error { return s.process.server.rename(h, to) })
		})
	})
}

// Remove removes a file or an empty directory.
func (p *Process) Remove(ctx context.Context, path string) error {
	err := p.do(ctx, "remove", path, func(ctx context.Context, s *session) error { return s.remove(ctx, path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveTree removes an entry with its content.
func (p *Process) RemoveTree(ctx context.Context, dir string) error {
	e, err := p.Stat(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && e.Dir {
		var names []string
		err = p.List(ctx, dir, func(e client.Entry) error {
			names = append(names, e.Name)
			return nil
		})
		for _, name := range names {
			if err == nil {
				err = p.RemoveTree(ctx, path.Join(dir, name))
			}
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed by another client
		return nil
	case err != nil:
		return err
	}
	return p.Remove(ctx, dir)
}

// CopyTree copies the content of a directory.
func (p *Process) CopyTree(ctx context.Context, from, to string, progress *client.Progress) error {
	var entries []client.Entry
	err := p.List(ctx, from, func(e client.Entry) error {
		entries = append(entries, e)
		return nil
	})
	for _, e := range entries {
		switch source, target := path.Join(from, e.Name), path.Join(to, e.Name); {
		case err != nil:
			return err
		case e.Dir:
			if err = p.Mkdir(ctx, target); err == nil {
				err = p.CopyTree(ctx, source, target, progress)
			}
		default:
			var content []byte
			if content, err = p.Read(ctx, source, 0); err == nil {
				err = p.do(ctx, "copy", source, func(context.Context, *session) error { return nil })
			}
			if err == nil {
				err = p.Create(ctx, target, content)
			}
			progress.Files.Add(1)
			progress.Bytes.Add(int64(len(content)))
		}
	}
	return err
}

// Space returns a size that is never used up.
func (p *Process) Space(ctx context.Context, path string) (total, available int64, err error) {
	return 1 << 40, 1 << 40, p.do(ctx, "ask for the free space of", path, func(ctx context.Context, s *session) error {
		return s.send(ctx, "space", path, func(*session) error { return nil })
	})
}
