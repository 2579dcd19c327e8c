package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Digests is the artifact with the digests of all images.
const Digests = "image-digests.txt"

// images makes the images, with those of container copy if the commit has it.
func (r *Release) images(ctx context.Context) error {
	dirs := []string{filepath.Join(r.work, "images")}
	if err := r.Maker.Images(ctx, r, dirs[0]); err != nil {
		return err
	}
	if r.has(ctx, "containercopy/images") {
		dirs = append(dirs, filepath.Join(r.work, "copy-images"))
		if err := r.Maker.CopyImages(ctx, r, dirs[1]); err != nil {
			return err
		}
	}
	var digests [][]byte
	for _, dir := range dirs {
		list, err := os.ReadFile(filepath.Join(dir, "digests.txt"))
		if err != nil {
			return err
		}
		digests = slices.AppendSeq(digests, bytes.Lines(list))
		for _, pattern := range []string{"*.tar", "*.spdx.json"} {
			if n, err := r.move(dir, pattern); err != nil {
				return err
			} else if n == 0 {
				return fmt.Errorf("no files %s in %s", pattern, dir)
			}
		}
	}
	slices.SortFunc(digests, bytes.Compare)
	return r.write(Digests, bytes.Join(digests, nil))
}
