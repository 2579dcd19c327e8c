package linuxtest

import (
	"os"
	"os/exec"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Run runs a program, which must succeed, on an image.
func (b *Bench) Run(m mounter.Mount, command ...string) {
	b.T.Helper()
	if out, err := exec.Command(command[0], append(command[1:], m.Source)...).CombinedOutput(); err != nil {
		b.T.Fatalf("%v: %v, %s", command, err, out)
	}
}

// WriteFile writes a file below the directory of the bench.
func (b *Bench) WriteFile(text string, elem ...string) {
	b.T.Helper()
	f, err := os.Create(b.Path(elem...))
	if err != nil {
		b.T.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		b.T.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.T.Fatal(err)
	}
}
