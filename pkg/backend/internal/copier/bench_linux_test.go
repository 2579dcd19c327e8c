package copier

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// The first benchmarks measure a copy and a cp -a of the same tree, both until the copy is durable.

// each benchmarks copies of src, on each filesystem of a disk.
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
			for range 3 { // the first copies allocate the blocks of the image
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

func BenchmarkTreeOfOneDirectory(b *testing.B) {
	benchTree(b, func(b *testing.B, src string) {
		must(b, os.Mkdir(src, 0o700))
		for i := range 100_000 {
			must(b, os.WriteFile(fmt.Sprint(src, "/", i), pattern(1000, byte(i)), 0o600))
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

// BenchmarkDepth measures the time for each entry at several depths. It should be about the same
// for all.
func BenchmarkDepth(b *testing.B) {
	for _, name := range []string{"tmpfs", "ext4"} {
		for _, depth := range []int{10, 1000, 10_000} {
			b.Run(fmt.Sprint(name, "/", depth), func(b *testing.B) {
				f := filesystem{name: name, size: 4 << 30, options: "noatime", make: []string{"-N", "1000000"}}
				if name == "tmpfs" {
					f.options = "size=4g"
				}
				dir := f.mount(b)
				const levels = 30_000
				for i := range levels / depth {
					must(b, os.MkdirAll(fmt.Sprint(dir, "/src/", i), 0o700))
					chain(b, fmt.Sprint(dir, "/src/", i), depth, deepName)
				}
				run(b, "sync", "-f", dir)
				var p Progress
				once := func(o Options) {
					_, err := copyTreeWith(context.Background(), b, dir+"/src", dir+"/dst", ways[0], o)
					must(b, err)
					b.StopTimer()
					run(b, "rm", "-rf", dir+"/dst")
					run(b, "sync", "-f", dir)
					b.StartTimer()
				}
				once(Options{}) // the first copy allocates the blocks of the image
				for b.Loop() {
					once(Options{Progress: &p})
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(p.Entries()), "ns/entry")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkMemory measures the peak of the resident memory of a process that copies 1,000,000
// entries.
func BenchmarkMemory(b *testing.B) {
	dir := filesystem{name: "tmpfs", options: "size=8g"}.mount(b)
	must(b, os.Mkdir(dir+"/src", 0o700))
	n := vast(b, dir+"/src", 325_000, 10_000)
	for b.Loop() {
		rss := peak(b, resident, dir+"/src", dir+"/dst")
		b.ReportMetric(float64(rss)/(1<<20), "MiB")
		b.ReportMetric(float64(n), "entries")
		run(b, "rm", "-rf", dir+"/dst")
	}
}
