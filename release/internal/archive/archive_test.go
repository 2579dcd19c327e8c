package archive

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	noon  = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	files = []File{
		{Name: "b/program", Executable: true, Content: []byte("program")},
		{Name: "a.txt", Content: []byte("text")},
	}
)

func TestArchivesAreTheSameForAnyOrderAndTimeZone(t *testing.T) {
	reversed := []File{files[1], files[0]}
	for name, write := range map[string]func(io.Writer, time.Time, []File) error{"a.tgz": TarGz, "a.zip": Zip} {
		var first, second bytes.Buffer
		if err := write(&first, noon, files); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) { // in another year: no time of the build
			if err := write(&second, noon.In(time.FixedZone("elsewhere", 7200)), reversed); err != nil {
				t.Fatal(err)
			}
		})
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("%s: two archives of the same files differ", name)
		}
		var later bytes.Buffer
		if err := write(&later, noon.Add(time.Hour), files); err != nil || bytes.Equal(first.Bytes(), later.Bytes()) {
			t.Errorf("%s: %v, or the time of the files is not in the archive", name, err)
		}
		read, err := Read(name, first.Bytes())
		if want := reversed; err != nil || !reflect.DeepEqual(read, want) {
			t.Errorf("%s: %v, %+v, want %+v", name, err, read, want)
		}
	}
}

func TestInvalidNamesAreRejected(t *testing.T) {
	for name, invalid := range map[string][]File{
		`invalid file name "../a"`: {{Name: "../a"}},
		`invalid file name "/a"`:   {{Name: "/a"}},
		`two files "a"`:            {{Name: "a"}, {Name: "a"}},
	} {
		for _, write := range []func(io.Writer, time.Time, []File) error{TarGz, Zip} {
			if err := write(io.Discard, noon, invalid); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, want %s", err, name)
			}
		}
	}
}

func TestADamagedArchiveIsAnError(t *testing.T) {
	var out bytes.Buffer
	if err := TarGz(&out, noon, files); err != nil {
		t.Fatal(err)
	}
	if _, err := Read("a.tar.gz", out.Bytes()[:out.Len()/2]); err == nil {
		t.Error("half of an archive is read")
	}
}
