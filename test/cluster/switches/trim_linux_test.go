package switches

import (
	"fmt"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// TestTrim: the node gets the space of a file that a pod has deleted in an image, while the pod
// runs.
func TestTrim(t *testing.T) {
	s := begin(t)
	s.must(upgrade(s.anyhow(), kube, "--set=hostpath.trimInterval=1m"))
	defer func() { s.must(upgrade(s.anyhow(), kube, "--set=hostpath.trimInterval=")) }()
	s.apply(claim("data", images, "1Gi", ""), pod("writer", only(nodes[0]), "data"))
	s.runs("writer")
	s.in("writer", "dd if=/dev/urandom of=/data/deleted bs=1M count=200 && echo stays >/data/kept && sync")
	image := fmt.Sprintf("%s/volumes/%s/image.raw", local.StorageDir,
		s.value("pv/"+s.value("pvc/data", "{.spec.volumeName}"), "{.spec.csi.volumeHandle}"))
	size := func() int64 { return s.number(s.on(nodes[0], "du --block-size=1M "+image+" | cut -f1")) }
	if n := size(); n < 200 {
		t.Fatalf("the image takes %d MiB, want 200 or more", n)
	}
	s.in("writer", "rm /data/deleted && sync")
	await.NoError(s, "the image takes less", func() error {
		if n := size(); n >= 200 {
			return fmt.Errorf("it takes %d MiB", n)
		}
		return nil
	})
	s.same("the other file", "stays", s.in("writer", "cat /data/kept"))
	s.ends("writer")
}
