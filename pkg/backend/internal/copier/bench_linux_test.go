package copier

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// The benchmarks tell how long a copy takes beside cp -a of the same, with the time until it is durable in both.

// each runs a benchmark of copying src to a new name, on each filesystem on a disk.
func each(b *testing.B, makeIt func(b *testing.B, src string), ours func(b *testing.B, src, dst string)) {
	for _, f := range filesystems[1:] {
		f.size = 4 << 30
		b.Run(f.name, func(b *testing.B) {
			dir := f.mount(b)
			src := dir + "/src"
			makeIt(b, src)
			run(b, "sync", "-f", dir)
			cp := func(b *testing.B, src, dst string) {
				run(b, "cp", "-a", src, dst)
				run(b, "sync", "-f", dir)
			}
			clean := func(b *testing.B, dst string) {
				must(b, os.RemoveAll(dst))
				run(b, "sync", "-f", dir)
			}
			for range 3 { // the first ones pay for the blocks of the image
				cp(b, src, dir+"/first")
				clean(b, dir+"/first")
			}
			for i, one := range []func(b *testing.B, src, dst string){ours, cp} {
				b.Run([]string{"ours", "cp"}[i], func(b *testing.B) {
					for b.Loop() {
						one(b, src, dir+"/dst")
						b.StopTimer()
						clean(b, dir+"/dst")
						b.StartTimer()
					}
				})
			}
		})
	}
}

func benchTree(b *testing.B, makeIt func(b *testing.B, src string)) {
	each(b, makeIt, func(b *testing.B, src, dst string) {
		must(b, os.Mkdir(dst, 0o700))
		from, to := open(b, src, os.O_RDONLY), open(b, dst, os.O_RDONLY)
		defer from.Close()
		defer to.Close()
		_, err := Tree(context.Background(), from, to, Options{})
		must(b, err)
	})
}

func BenchmarkTreeOf100000SmallFiles(b *testing.B) {
	benchTree(b, func(b *testing.B, src string) {
		for i := range 100 {
			sub := fmt.Sprint(src, "/", i)
			must(b, os.MkdirAll(sub, 0o700))
			for j := range 1000 {
				must(b, os.WriteFile(fmt.Sprint(sub, "/", j), pattern(1000, byte(j)), 0o600))
			}
		}
	})
}

func BenchmarkTreeOf512MiB(b *testing.B) {
	benchTree(b, func(b *testing.B, src string) {
		must(b, os.Mkdir(src, 0o700))
		for i := range 64 {
			must(b, os.WriteFile(fmt.Sprint(src, "/", i), pattern(8<<20, byte(i)), 0o600))
		}
	})
}

func BenchmarkFileOf1GiB(b *testing.B) {
	each(b, func(b *testing.B, src string) {
		parts := map[int64]int{}
		for i := range int64(8) {
			parts[i<<28] = 128 << 20
		}
		writeParts(b, src, 2<<30, parts).Close()
	}, func(b *testing.B, src, dst string) {
		from, to := open(b, src, os.O_RDONLY), open(b, dst, os.O_RDWR|os.O_CREATE)
		defer from.Close()
		defer to.Close()
		_, err := File(context.Background(), from, to, Options{})
		must(b, err)
	})
}
