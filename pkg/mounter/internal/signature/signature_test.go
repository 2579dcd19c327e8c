package signature

import (
	"errors"
	"io"
	"testing"
)

// device is a device in memory: zeroes except for its data, and a byte that cannot be read.
type device struct {
	size   int64
	data   map[int64]string
	broken int64
}

var errBroken = errors.New("the medium is broken")

func (d device) ReadAt(p []byte, offset int64) (int, error) {
	clear(p)
	if d.broken >= offset && d.broken < offset+int64(len(p)) {
		return int(d.broken - offset), errBroken
	}
	for at, text := range d.data {
		for i := range len(text) {
			if o := at + int64(i) - offset; o >= 0 && o < int64(len(p)) {
				p[o] = text[i]
			}
		}
	}
	if over := offset + int64(len(p)) - d.size; over > 0 {
		return len(p) - int(over), io.EOF
	}
	return len(p), nil
}

func TestAnUnreadableDeviceIsNotBlank(t *testing.T) {
	const none = -1
	for _, size := range []int64{1 << 20, 1<<20 + 512, 3 << 19, 2 << 20, 100 << 20, 1 << 30, 300 << 30, 5 << 40} {
		if c, err := Examine(device{size: size, broken: none}, size); err != nil || !c.Blank {
			t.Errorf("a blank device of %d bytes: %+v, %v", size, c, err)
		}
		for _, r := range Regions(size) {
			for _, at := range []int64{r.Offset, r.Offset + r.Length - 1} {
				if at >= size {
					t.Fatalf("a region of a device of %d bytes ends at %d", size, at)
				}
				if _, err := Examine(device{size: size, broken: at}, size); !errors.Is(err, errBroken) {
					t.Errorf("byte %d of %d cannot be read: %v", at, size, err)
				}
				if c, err := Examine(device{size: size, broken: none, data: map[int64]string{at: "\x01"}},
					size); err != nil || c.Blank {
					t.Errorf("byte %d of %d is not zero: %+v, %v", at, size, c, err)
				}
			}
		}
	}
	if _, err := Examine(device{size: 1<<20 - 1, broken: none}, 1<<20-1); err == nil {
		t.Error("a device that is too small is examined")
	}
}

// TestEverySignatureIsInARangeThatIsRead: a signature elsewhere would never prevent a format.
func TestEverySignatureIsInARangeThatIsRead(t *testing.T) {
	const size = 100 << 30
	for _, s := range append(signatures, raidAt(size)...) {
		at := s.Offset
		if at < 0 {
			at += size
		}
		c, err := Examine(device{size: size, broken: -1, data: map[int64]string{at: s.Magic}}, size)
		if err != nil || c.Name != s.Name {
			t.Errorf("%s at %d: %+v, %v", s.Name, s.Offset, c, err)
		}
	}
}
