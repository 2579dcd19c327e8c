package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// spoils are the ways to spoil a record. The next start must not wait for any of them, nor end.
var spoils = []func(record string) error{
	func(record string) error { return unix.Mkfifo(record, 0o600) },
	func(record string) error { return os.Mkdir(record, 0o700) },
	func(record string) error { return os.Symlink("/etc/hostname", record) },
	impossible,
}

// impossible writes a record with the right checksum whose fields no release combines.
func impossible(record string) error {
	good, err := os.ReadFile(record + away)
	if err != nil {
		return err
	}
	var file map[string]json.RawMessage
	var data map[string]any
	if err := json.Unmarshal(good, &file); err != nil {
		return err
	}
	if err := json.Unmarshal(file["data"], &data); err != nil {
		return err
	}
	data["enforced"] = true
	delete(data, "mark")
	if file["data"], err = json.Marshal(data); err != nil {
		return err
	}
	sum := crc32.Checksum(file["data"], crc32.MakeTable(crc32.Castagnoli))
	file["crc32c"] = fmt.Appendf(nil, `"%08x"`, sum)
	text, err := json.Marshal(file)
	if err != nil {
		return err
	}
	return os.WriteFile(record, text, 0o600)
}

// away is the suffix of the name that a good record has while it is spoiled.
const away = "-away"

// spoiledRecords: root on the data disk, or a fault of it, has spoiled the records of volumes. They
// are reported and left alone.
func spoiledRecords(ctx context.Context, b *bench) error {
	w, err := newWorld(ctx, b, "xfs")
	if err != nil {
		return err
	}
	defer w.kill()
	before, err := w.laps(ctx, b.rounds, 0)
	if err != nil {
		return err
	}
	var bad []*volume
	for range hostileVolumes {
		v := w.newVolume("hostile", directory)
		if err := v.create(ctx, nil); err != nil {
			return err
		}
		bad = append(bad, v)
	}
	if _, err := w.stop(); err != nil {
		return err
	}
	for i, v := range bad {
		if err := errors.Join(os.Rename(v.record(), v.record()+away), spoils[i%len(spoils)](v.record())); err != nil {
			return err
		}
	}
	if err := w.start(ctx); err != nil {
		return err
	}
	if err := w.suffer(ctx, b, before, nil); err != nil {
		return fmt.Errorf("%w; the log ends with %s", err, w.tail())
	}
	for _, v := range bad {
		if err := v.stage(ctx); err == nil {
			return fmt.Errorf("volume %s was staged with a spoiled record", v.name)
		}
		if reasons, err := v.health(ctx); err != nil || fmt.Sprint(reasons) != "[RecordUnreadable]" {
			return fmt.Errorf("health of %s: %v, %w", v.name, reasons, err)
		}
	}
	if _, err := w.stop(); err != nil {
		return err
	}
	for _, v := range bad {
		if err := errors.Join(os.Remove(v.record()), os.Rename(v.record()+away, v.record())); err != nil {
			return err
		}
	}
	if err := w.start(ctx); err != nil {
		return err
	}
	return w.end(ctx, bad)
}

func (v *volume) record() string { return filepath.Join(v.w.root(), "volumes", v.id, "record.json") }
