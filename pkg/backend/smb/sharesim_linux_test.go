package smb

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/sharesim"
)

// TestTheSimulatedServerAnswersAsSamba makes the same operations on both servers. The two agree
// where Windows differs: there a directory with an open file cannot be moved.
func TestTheSimulatedServerAnswersAsSamba(t *testing.T) {
	t.Run("simulated", func(t *testing.T) {
		simulate(t, func(w *simulation) {
			_, p := w.process()
			other := sharesim.NewProcess(w.server, "other", sharesim.Faults{}, 1)
			defer other.Kill()
			checkAnswers(t, p, other, simulationDir)
		})
	})
	t.Run("Samba", func(t *testing.T) {
		w := newWorld(t, smbtest.Serve(t), smbtest.Share)
		var shares [2]share
		for i := range shares { // each with a session of its own
			b := w.open()
			s, err := b.openOnServer(t.Context(), w.parsed(), client.Login{User: w.user, Password: w.password}, client.Calls)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Release()
			shares[i] = s
		}
		checkAnswers(t, shares[0], shares[1], w.parsed().Path)
	})
}

// checkAnswers checks the answers of a server to two clients, in a directory.
func checkAnswers(t *testing.T, s, other share, dir string) {
	ctx := context.Background()
	at := func(name string) string { return path.Join(dir, name) }
	stat := func(name string) error { _, err := s.Stat(ctx, at(name)); return err }
	read := func(name, want string) error {
		content, err := s.Read(ctx, at(name), 100)
		if err == nil && string(content) != want {
			t.Errorf("%s = %q, want %q", name, content, want)
		}
		return err
	}
	list := func(name string) error {
		return s.List(ctx, at(name), func(client.Entry) error { return nil })
	}
	refused := errors.New("refused")
	rewrite := func(name, content string, answer error) error {
		return s.Rewrite(ctx, at(name), 100, func([]byte) error { return answer }, []byte(content))
	}
	during := func(operation func() error) (err error) { // while the other client has d/f open for writing
		e := other.Rewrite(ctx, at("d/f"), 100, func([]byte) error { err = operation(); return nil }, []byte("2"))
		return cmp.Or(err, e)
	}
	denied := false
	mayBeDenied := func(err error) error { // by Samba 4.22, and not by 4.17
		if denied = errors.Is(err, backend.ErrDenied); denied {
			return nil
		}
		return err
	}
	for _, row := range []struct {
		what string
		err  error
		want error
	}{
		{"make d", s.Mkdir(ctx, at("d")), nil},
		{"make d again", s.Mkdir(ctx, at("d")), fs.ErrExist},
		{"make D", other.Mkdir(ctx, at("D")), fs.ErrExist},
		{"make missing/d", s.Mkdir(ctx, at("missing/d")), fs.ErrNotExist},
		{"create d/f", s.Create(ctx, at("d/f"), []byte("1")), nil},
		{"create d/f again", other.Create(ctx, at("d/f"), []byte("3")), fs.ErrExist},
		{"create the marker d/F", other.CreateMarker(ctx, at("d/F"), []byte("3")), fs.ErrExist},
		{"create missing/f", s.Create(ctx, at("missing/f"), nil), fs.ErrNotExist},
		{"make d/f", s.Mkdir(ctx, at("d/f")), fs.ErrExist},
		{"read d/f", read("d/f", "1"), nil},
		{"read d/missing", read("d/missing", ""), fs.ErrNotExist},
		{"look d/f up", stat("d/f"), nil},
		{"look missing up", stat("missing"), fs.ErrNotExist},
		{"look d/f/x up", stat("d/f/x"), fs.ErrNotExist},
		{"list d", list("d"), nil},
		{"list missing", list("missing"), fs.ErrNotExist},
		{"refuse to rewrite d/f", rewrite("d/f", "3", refused), refused},
		{"rewrite d/missing", rewrite("d/missing", "3", nil), fs.ErrNotExist},
		{"read d/f as it was", read("d/f", "1"), nil},
		{"remove d", s.Remove(ctx, at("d")), client.ErrNotEmpty},
		{"read d/f while it is open", during(func() error { return read("d/f", "1") }), nil},
		{"read d/f after its change", read("d/f", "2"), nil},
		{"remove d/f while it is open", during(func() error { return s.Remove(ctx, at("d/f")) }), client.ErrShared},
		{"move d/f while it is open", during(func() error { return s.Rename(ctx, at("d/f"), at("d/g")) }), client.ErrShared},
		{"move d while a file in it is open", during(func() error {
			return mayBeDenied(s.Rename(ctx, at("d"), at("e")))
		}), nil},
		{"move e back", func() error {
			if denied {
				return nil
			}
			return s.Rename(ctx, at("e"), at("d"))
		}(), nil},
		{"move d/f", s.Rename(ctx, at("d/f"), at("d/g")), nil},
		{"move d/f again", s.Rename(ctx, at("d/f"), at("d/g")), fs.ErrNotExist},
		{"create d/h", s.Create(ctx, at("d/h"), nil), nil},
		{"move d/g to missing/g", s.Rename(ctx, at("d/g"), at("missing/g")), fs.ErrNotExist},
		{"move d/g to the place of d/h", s.Rename(ctx, at("d/g"), at("d/h")), nil},
		{"move d", s.Rename(ctx, at("d"), at("e")), nil},
		{"read e/h", read("e/h", "2"), nil},
		{"make c", s.Mkdir(ctx, at("c")), nil},
		{"copy e", s.CopyTree(ctx, at("e"), at("c"), &client.Progress{}), nil},
		{"read c/h", read("c/h", "2"), nil},
		{"move c/h to the place of e", s.Rename(ctx, at("c/h"), at("e")), fs.ErrExist},
		{"move c to the place of e", s.Rename(ctx, at("c"), at("e")), client.ErrNotEmpty},
		{"remove the tree e", s.RemoveTree(ctx, at("e")), nil},
		{"remove the tree e again", other.RemoveTree(ctx, at("e")), nil},
		{"look e/h up", stat("e/h"), fs.ErrNotExist},
		{"remove c/h", s.Remove(ctx, at("c/h")), nil},
		{"remove c/h again", other.Remove(ctx, at("c/h")), nil},
		{"remove c", other.Remove(ctx, at("c")), nil},
		{"look c up", stat("c"), fs.ErrNotExist},
	} {
		if !errors.Is(row.err, row.want) {
			t.Errorf("%s: %v, want %v", row.what, row.err, row.want)
		}
	}
}
