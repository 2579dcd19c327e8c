package smb

import (
	"path"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// FuzzParseObject: an ID that is accepted is the only text of its object, and leads nowhere else.
func FuzzParseObject(f *testing.F) {
	o, err := records.NewObject(volumeid.Volume, mounter.ShareSource{Server: "nas", Share: "share", Path: "dir"}, "pvc-1")
	if err != nil {
		f.Fatal(err)
	}
	for _, id := range []string{o.String(), o.String() + "/..", o.Key, o.Key + "@NAS/share/dir", "a#b#c", ""} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		got, err := records.ParseObject(volumeid.Volume, id)
		if err != nil {
			return
		}
		again, err := mounter.ParseShare(got.Source.String())
		if err != nil || again != got.Source || got.String() != id || len(id) > records.MaxID ||
			path.Clean("/"+got.Source.Path) != path.Join("/", got.Source.Path) {
			t.Errorf("%q = %+v, %v", id, got, err)
		}
	})
}

// FuzzSubDir: a directory that is accepted is below its source, and not that of the records.
func FuzzSubDir(f *testing.F) {
	for _, template := range []string{defaultSubDir, "${pvc.metadata.namespace}/x", "../x", "a//b", ".causeway", "${", "CON"} {
		f.Add(template, "pvc-1", "ns", "name")
	}
	f.Fuzz(func(t *testing.T, template, volume, namespace, name string) {
		o := backend.CreateOptions{Name: volume, Claim: backend.Claim{Namespace: namespace, Name: name, Volume: volume}}
		subDir, err := subDirOf(template, o, "key")
		if err != nil {
			return
		}
		if subDir == "" || path.Clean("/"+subDir) != "/"+subDir || strings.ContainsAny(subDir, "\\:\x00\n") {
			t.Errorf("%q = %q", template, subDir)
		}
		if first, _, _ := strings.Cut(subDir, "/"); strings.EqualFold(first, records.MetaDir) {
			t.Errorf("%q = %q, the directory of the records", template, subDir)
		}
		if _, err := mounter.ParseShare("//server/share/" + subDir); err != nil && len(subDir) < 900 {
			t.Errorf("%q = %q, which cannot be mounted: %v", template, subDir, err)
		}
	})
}
