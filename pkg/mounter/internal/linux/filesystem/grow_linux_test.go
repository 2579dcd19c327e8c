package filesystem

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestExt4IsFullWhenResize2fsReportsIt: otherwise each stage call would check and resize the ext4.
func TestExt4IsFullWhenResize2fsReportsIt(t *testing.T) {
	for _, name := range []string{"mkfs.ext4", "e2fsck", "resize2fs"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	for blockSize, counts := range map[uint64][]uint64{1024: {48, 49, 81}, 4096: {3, 4, 7}} {
		for _, groups := range counts {
			t.Run(fmt.Sprintf("%d groups of %d-byte blocks", groups, blockSize), func(t *testing.T) {
				f, err := os.Create(filepath.Join(t.TempDir(), "image"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				run := func(size uint64, name string, args ...string) {
					t.Helper()
					if err := f.Truncate(int64(size)); err != nil {
						t.Fatal(err)
					}
					if out, err := exec.Command(name, append(args, f.Name())...).CombinedOutput(); err != nil {
						t.Fatalf("%s: %v, %s", name, err, out)
					}
				}
				read := func() Ext4Super {
					t.Helper()
					super, err := ReadExt4(f)
					if err != nil {
						t.Fatal(err)
					}
					return super
				}
				resize := func(size uint64) Ext4Super {
					t.Helper()
					run(size, "e2fsck", "-f", "-p")
					run(size, "resize2fs")
					return read()
				}
				page := uint64(os.Getpagesize())
				size := groups * 8 * blockSize * blockSize
				run(size, "mkfs.ext4", "-q", "-b", fmt.Sprint(blockSize))
				before := resize(size + page)
				if before.blocks-before.first != groups*before.groupBlocks {
					t.Fatalf("%+v does not have %d whole groups", before, groups)
				}
				enough := ((before.blocks+before.leastLast(groups))*blockSize + page - 1) / page * page
				for _, size := range []uint64{size + page, enough - page, enough - 1, enough} {
					full := before.Full(size)
					if after := resize(size); full != (after.blocks == before.blocks) {
						t.Errorf("with %d bytes %+v is full: %v, and became %+v", size, before, full, after)
					}
				}
				if before.Full(enough) {
					t.Errorf("%+v is full for every size of the device", before)
				}
			})
		}
	}
}
