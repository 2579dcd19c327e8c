package smb

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// TestUnreadableRecords: a damaged record, and that of a newer release, affect their own objects
// and calls that compare the directories of all volumes. Their directories stay.
func TestUnreadableRecords(t *testing.T) {
	for name, tc := range map[string]struct{ content, reason, says string }{
		"torn":      {`{"version":1,"crc32c":"0`, "RecordUnreadable", "restore"},
		"other sum": {`{"version":1,"crc32c":"00000000","data":{}}`, "RecordUnreadable", "restore"},
		"too large": {strings.Repeat(" ", records.MaxSize+1), "RecordUnreadable", "restore"},
		"newer":     {`{"version":99,"crc32c":"00000000","data":{}}`, "RecordOfNewerVersion", "newer release"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, smbtest.Serve(t), smbtest.Share)
			b := w.open()
			ctx := context.Background()
			spoiled := w.create(b, w.request("spoiled"))
			full, empty := w.create(b, w.request("full")), w.create(b, w.request("empty"))
			for _, v := range []string{"spoiled", "full"} {
				if err := os.WriteFile(w.path(v, "data"), []byte("precious"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			o, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap", Source: full.ID})
			if err != nil {
				t.Fatal(err)
			}
			good, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "good", Source: full.ID})
			if err != nil {
				t.Fatal(err)
			}
			for dir, id := range map[string]string{records.VolumesDir: spoiled.ID, records.SnapshotsDir: o.ID} {
				key, _, _ := strings.Cut(id, "@")
				path := w.path(records.MetaDir, dir, key+records.RecordSuffix)
				if _, err := os.Stat(path); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(tc.content), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			b = w.open()

			volumes, _, err := b.List(ctx, "", 10)
			if err != nil || len(volumes) != 2 || volumes[0].ID == spoiled.ID || volumes[1].ID == spoiled.ID {
				t.Errorf("List: got %+v, %v, want the two others", volumes, err)
			}
			snapshots, _, err := b.ListSnapshots(ctx, "", "", 10)
			if err != nil || len(snapshots) != 1 || snapshots[0].ID != good.ID {
				t.Errorf("ListSnapshots: got %+v, %v, want the other", snapshots, err)
			}
			conditions, err := b.Health(ctx, spoiled.ID)
			if err != nil || len(conditions) != 1 || conditions[0].Reason != tc.reason ||
				!strings.Contains(conditions[0].Message, tc.says) {
				t.Errorf("Health: got %+v, %v, want %s", conditions, err, tc.reason)
			}
			sick, _, err := b.ListHealth(ctx, "", 10)
			if err != nil || len(sick) != 1 || sick[0].ID != spoiled.ID || sick[0].Conditions[0].Reason != tc.reason {
				t.Errorf("ListHealth: got %+v, %v, want %s", sick, err, tc.reason)
			}

			refused := func(call string, err error) {
				t.Helper()
				if !errors.Is(err, backend.ErrNotReady) || !strings.Contains(err.Error(), spoiled.ID) {
					t.Errorf("%s: %v, want ErrNotReady with the ID of the volume", call, err)
				}
			}
			refused("Delete", b.Delete(ctx, spoiled.ID, nil))
			// The directory of the unknown record may be in that of the volume, or around it.
			refused("Delete of another volume with files", b.Delete(ctx, full.ID, nil))
			_, err = b.Create(ctx, w.request("nested", subDirKey, "teams/x"))
			refused("Create of a nested directory", err)
			if err := os.Mkdir(w.path("inner"), 0o777); err != nil {
				t.Fatal(err)
			}
			inner := w.request("inner")
			inner.Parameters[sourceKey] = w.source() + "/inner"
			_, err = b.Create(ctx, inner)
			refused("Create in a source inside of the source", err)
			if err := b.Delete(ctx, empty.ID, nil); err != nil {
				t.Errorf("Delete of an empty volume: %v", err)
			}
			w.create(b, w.request("new"))
			// The remedy of the page smb.md.
			key, _, _ := strings.Cut(spoiled.ID, "@")
			if err := os.Remove(w.path(records.MetaDir, records.VolumesDir, key+records.RecordSuffix)); err != nil {
				t.Fatal(err)
			}
			if err := b.Delete(ctx, spoiled.ID, nil); err != nil {
				t.Errorf("Delete without the record: %v", err)
			}
			if _, err := b.Create(ctx, w.request("nested", subDirKey, "teams/x")); err != nil {
				t.Errorf("Create without the record: %v", err)
			}
			if _, err := b.Create(ctx, inner); err != nil {
				t.Errorf("Create in the inner source without the record: %v", err)
			}
			for _, v := range []string{"spoiled", "full"} {
				if data, err := os.ReadFile(w.path(v, "data")); string(data) != "precious" {
					t.Errorf("the data of %s: %q, %v", v, data, err)
				}
			}
		})
	}
}

// TestRecordsWithValuesOfANewerRelease are left alone: this release would delete the data of a
// volume with another value of onDelete.
func TestRecordsWithValuesOfANewerRelease(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	ctx := t.Context()
	for name, change := range map[string]func(data map[string]any){
		"a field":              func(data map[string]any) { data["more"] = 1 },
		"a parameter":          func(data map[string]any) { data["parameters"].(map[string]any)["more"] = "1" },
		"a value of onDelete":  func(data map[string]any) { data["parameters"].(map[string]any)["onDelete"] = "quarantine" },
		"a value that changed": func(data map[string]any) { data["onDelete"] = "quarantine" },
		"a state":              func(data map[string]any) { data["state"] = "frozen" },
	} {
		t.Run(name, func(t *testing.T) {
			b := w.open()
			v := w.create(b, w.request(strings.ReplaceAll(name, " ", "-")))
			key, _, _ := strings.Cut(v.ID, "@")
			path := w.path(records.MetaDir, records.VolumesDir, key+records.RecordSuffix)
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var record struct{ Data map[string]any }
			if err := json.Unmarshal(file, &record); err != nil {
				t.Fatal(err)
			}
			change(record.Data)
			if file, err = records.VolumeFormat.Encode(record.Data); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, file, 0o666); err != nil {
				t.Fatal(err)
			}
			b = w.open()
			if err := b.Delete(ctx, v.ID, nil); !errors.Is(err, backend.ErrNotReady) {
				t.Errorf("Delete = %v, want ErrNotReady", err)
			}
			if name != "a field" { // which may change the meaning of the others
				other := w.create(b, w.request("beside-"+strings.ReplaceAll(name, " ", "-")))
				if err := b.Delete(ctx, other.ID, nil); err != nil {
					t.Errorf("Delete of a volume beside it = %v", err)
				}
				if _, err := b.Create(ctx, w.request("inside", subDirKey, v.Context[subDirKey]+"/x")); !errors.Is(err,
					backend.ErrPrecondition) {
					t.Errorf("Create inside of it = %v, want ErrPrecondition", err)
				}
			}
			if c, err := b.Health(ctx, v.ID); err != nil || len(c) != 1 || c[0].Reason != "RecordOfNewerVersion" {
				t.Errorf("Health = %+v, %v", c, err)
			}
			if _, err := os.Stat(w.path(v.Context[subDirKey])); err != nil {
				t.Errorf("the directory of the volume: %v", err)
			}
			if err := os.Remove(path); err != nil { // a field fails all comparisons
				t.Fatal(err)
			}
		})
	}
}
