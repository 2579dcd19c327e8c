package links_test

import (
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
)

// TestTheModelIsAMachine: the model keeps the rules of the calls of Windows.
func TestTheModelIsAMachine(t *testing.T) {
	const dir = `C:\test`
	for name, test := range map[string]func(t *testing.T){
		"links": func(t *testing.T) {
			m, files := links.NewModelMachine()
			if err := files.MkdirAll(dir); err != nil {
				t.Fatal(err)
			}
			linkstest.LinkHost(t, m.Links, files, dir)
		},
		"disks": func(t *testing.T) {
			m, files := links.NewModelMachine()
			if err := files.MkdirAll(dir); err != nil {
				t.Fatal(err)
			}
			linkstest.DiskHost(t, m.Disks, files, dir)
		},
		"shares": func(t *testing.T) {
			m, files := links.NewModelMachine()
			if err := files.MkdirAll(dir); err != nil {
				t.Fatal(err)
			}
			linkstest.ShareHost(t, m.Shares, m.Links, linkstest.ShareTrial{Root: `\\srv\share`, Missing: `\\srv\missing`,
				Credentials: mounter.Credentials{Username: "user", Password: "Passw0rd"}, Dir: dir})
		},
	} {
		t.Run(name, test)
	}
}
