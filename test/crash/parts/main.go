// Command parts makes, commits and deletes parts of groups as a router requests, and first verifies
// the state that the previous process has left. The crash tests kill it. Nothing is mounted: other
// tests verify the remains of a freeze.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

const (
	node = "n"
	size = 8 << 20 // bytes of a volume
	at   = 4 << 20 // where a text is in it
)

func main() {
	helper.Main(hostpath.HelperTasks())
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves a root, beside which it has a directory of its own, and goes on after so many steps.
// For each that is acknowledged it prints a line.
func run(root, dir, done string) error {
	next, err := strconv.Atoi(done)
	if err != nil {
		return err
	}
	m := mountertest.NewFake(dir)
	m.Filesystem = true
	b, err := hostpath.New(hostpath.Config{
		Root: root, Node: node, RootRecord: filepath.Join(dir, "seen"), Release: "test", Init: true,
		Images: m,
	})
	if err != nil {
		return err
	}
	defer b.Close()
	for ready := false; !ready; time.Sleep(time.Millisecond) {
		if ready, err = b.Probe(context.Background()); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
	}
	w := &work{Backend: b, root: root}
	if err := w.kept(next); err != nil {
		return fmt.Errorf("after %d steps: %w", next, err)
	}
	for i, step := range steps[next:] {
		if err := step(w); err != nil {
			return fmt.Errorf("step %d: %w", next+i, err)
		}
		fmt.Println("done")
		crashpoint.Reached("ack")
	}
	return w.kept(len(steps))
}

type work struct {
	*hostpath.Backend
	root string
}

// steps can be repeated, each, until it was acknowledged.
var steps = []func(*work) error{
	(*work).create,
	func(w *work) error { return w.makePart("g") },
	func(w *work) error { return w.makePart("h") },
	func(w *work) error { return w.commitPart("g") },
	func(w *work) error { return w.discard("h") },
	func(w *work) error { return w.makePart("h") },
	func(w *work) error { return w.DeleteGroup(context.Background(), group("g"), nil, nil) },
	func(w *work) error { return w.discard("h") },
	(*work).remove,
}

// kept returns an error unless the state is that after so many steps, or after a part of the next
// step.
func (w *work) kept(next int) error {
	g, errG := w.checkPart("g", next >= 2 && next <= 5, next > 6, next == 4 || next == 5, next < 3)
	h, errH := w.checkPart("h", next == 3 || next == 6, next < 2 || next > 7, false, true)
	var wrong []error
	for dir, want := range map[string]int{"staging": 0, "groups": g + h, "snapshots": 2 * (g + h)} {
		entries, err := os.ReadDir(filepath.Join(w.root, dir))
		if err == nil && len(entries) != want {
			err = fmt.Errorf("%d things in %s, want %d", len(entries), dir, want)
		}
		wrong = append(wrong, err)
	}
	entries, err := os.ReadDir(filepath.Join(w.root, "volumes"))
	if err == nil && ((next > 0 && next < 8 && len(entries) != 2) || (next == len(steps) && len(entries) > 0)) {
		err = fmt.Errorf("%d volumes", len(entries))
	}
	return errors.Join(append(wrong, errG, errH, err)...)
}

// checkPart returns the number of parts of the group, and an error if a part is missing, must be
// gone, must be committed or must not be, or is incomplete.
func (w *work) checkPart(name string, there, gone, committed, uncommitted bool) (int, error) {
	part, err := w.GetPart(context.Background(), group(name))
	if errors.Is(err, backend.ErrNotFound) && !there {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("part %s: %w", name, err)
	}
	if gone || (committed && !part.Committed) || (uncommitted && part.Committed) || len(part.Snapshots) != 2 {
		return 1, fmt.Errorf("part %s is %+v", name, part)
	}
	for _, s := range part.Snapshots {
		text, err := os.ReadFile(filepath.Join(w.root, "snapshots", s.ID, "image.raw"))
		if err != nil || len(text) != size || string(bytes.TrimRight(text[at:at+64], "\x00")) != part.AttemptID {
			return 1, fmt.Errorf("a member of %s has not the text of the attempt %s: %w", name, part.AttemptID, err)
		}
	}
	return 1, nil
}

func group(name string) string { return volumeid.New(volumeid.Group, volumeid.SeveralNodes, name) }

func volumes() []string {
	return []string{volumeid.New(volumeid.Volume, node, "a"), volumeid.New(volumeid.Volume, node, "b")}
}

func (w *work) create() error {
	for _, name := range []string{"a", "b"} {
		_, err := w.Create(context.Background(), backend.CreateOptions{
			Name: name, Required: size, Access: []backend.Access{{}}, Parameters: map[string]string{"kind": "image"},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *work) remove() error {
	for _, id := range volumes() {
		if err := w.Delete(context.Background(), id, nil); err != nil {
			return err
		}
	}
	return nil
}

// makePart makes a part, and changes the content of its volumes only while they are frozen.
func (w *work) makePart(name string) error {
	cut := fmt.Sprint(name, " of ", time.Now().UnixNano())
	hook := func(point, text string) func(context.Context) error {
		return func(context.Context) error {
			crashpoint.Reached(point)
			return w.write(text)
		}
	}
	part, err := w.SnapshotPart(context.Background(), backend.PartOptions{
		GroupOptions: backend.GroupOptions{Name: name,
			Sources: volumes()}, All: slices.Sorted(slices.Values(volumes())),
		AttemptID: cut, Frozen: hook("hook:frozen", cut), Durable: hook("hook:durable", "later"),
	})
	if err == nil && part.Committed {
		err = fmt.Errorf("a new part is %+v", part)
	}
	return err
}

func (w *work) write(text string) error {
	for _, id := range volumes() {
		file, err := os.OpenFile(filepath.Join(w.root, "volumes", id, "image.raw"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(append([]byte(text), make([]byte, 64-len(text))...), at)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) commitPart(name string) error {
	part, err := w.GetPart(context.Background(), group(name))
	if err != nil {
		return err
	}
	return w.CommitPart(context.Background(), part.ID, part.AttemptID)
}

// discard discards the parts.
func (w *work) discard(name string) error {
	part, err := w.GetPart(context.Background(), group(name))
	if errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.DiscardPart(context.Background(), part.ID, part.AttemptID)
}
