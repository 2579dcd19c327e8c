package copier

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"
)

// newTarget makes an empty file.
func newTarget(t *testing.T) *os.File {
	t.Helper()
	dst, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dst.Close() })
	return dst
}

func openSource(t *testing.T, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	write(t, path, data)
	src, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

func TestFile(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty": nil, "small": []byte("content"), "more than a buffer": bytes.Repeat([]byte("0123456789abcdef"), 200_000),
	} {
		t.Run(name, func(t *testing.T) {
			src, dst, progress := openSource(t, data), newTarget(t), &Progress{}
			how, err := File(context.Background(), src, dst, Options{Progress: progress})
			if err != nil || how != Copied {
				t.Fatalf("File: %v, %v", how, err)
			}
			if got, err := os.ReadFile(dst.Name()); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the copy has %d bytes, %v, want those of the source, %d", len(got), err, len(data))
			}
			if progress.Bytes() != int64(len(data)) {
				t.Errorf("progress: %d bytes, want %d", progress.Bytes(), len(data))
			}
			if held, err := OnDisk(dst); err != nil || held < int64(len(data)) {
				t.Errorf("OnDisk = %d, %v, want at least %d", held, err, len(data))
			}
		})
	}
}

func TestFileRefuses(t *testing.T) {
	full := newTarget(t)
	if _, err := full.WriteString("precious"); err != nil {
		t.Fatal(err)
	}
	if _, err := File(context.Background(), openSource(t, []byte("x")), full, Options{}); !errors.Is(err,
		windows.ERROR_INVALID_PARAMETER) {
		t.Errorf("a target with content: %v", err)
	}
	if got, err := os.ReadFile(full.Name()); err != nil || string(got) != "precious" {
		t.Errorf("the target has %q, %v", got, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := File(ctx, openSource(t, []byte("x")), newTarget(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled copy: %v", err)
	}
}
