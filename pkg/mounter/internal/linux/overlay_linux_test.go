package linux

import (
	"slices"
	"strings"
	"testing"
)

func TestOverlayLayers(t *testing.T) {
	for options, want := range map[string][]string{
		`rw,lowerdir=/a:/b\134:c:/f\040g:/h\134\134i,upperdir=up/u,workdir=up/w,uuid=on`: {"/a",
			"/b:c", "/f g", `/h\i`, "up/u", "up/u", "up/w", "up/w"},
		`rw,lowerdir=a:/d\134\054e,upperdir=/u\134:x,workdir=/w\134\134y`: {"a",
			"/d,e", "/u:x", `/u\:x`, `/w\y`, `/w\\y`},
		`ro,lowerdir+=/b:c,lowerdir+=/d\054e,lowerdir+=/h\134i,datadir+=/f\040g,redirect_dir=on,metacopy=on`: {"/b:c",
			"/d,e", `/h\i`, "/f g"},
		`ro,lowerdir=/a:/b::/data::/more,metacopy=on`: {"/a",
			"/b", "/data", "/more"},
		`rw,upperdir=/u:v`:                       {"/u:v", "/u:v"},
		`ro,lowerdir=/trailing\134`:              {`/trailing\`},
		"":                                       nil,
		`rw,lowerdir,upperdir=,lowerdirs=/x,\05`: {""},
	} {
		if got := overlayLayers(options); !slices.Equal(got, want) {
			t.Errorf("overlayLayers(%s) = %q, want %q", options, got, want)
		}
	}
}

func FuzzLayersOfAnOverlay(f *testing.F) {
	for _, path := range []string{"/a", "/b:c", `/d\e`, "/f,g", "/h i\n\t", "/:", `/\`, "/é"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		overlayLayers(path)
		if path == "" {
			return
		}
		escape := strings.NewReplacer(`\`, `\\`, ":", `\:`)
		octal := strings.NewReplacer(`\`, `\134`, ",", `\054`, " ", `\040`, "\t", `\011`, "\n", `\012`)
		for option, value := range map[string]string{
			"lowerdir": escape.Replace(path), "upperdir": escape.Replace(path), "workdir": path, "lowerdir+": path,
			"datadir+": path,
		} {
			if got := overlayLayers("rw," + option + "=" + octal.Replace(value) + ",x=y"); !slices.Contains(got, path) {
				t.Errorf("%s of %q: %q", option, path, got)
			}
		}
	})
}
