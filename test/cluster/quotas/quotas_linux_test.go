package quotas

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// objects are a claim of a directory and a pod that has it at /volume, on the guest.
const objects = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: causeway-hostpath
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 1000, fsGroup: 1000}
  containers:
  - name: shell
    image: %[3]s
    command: [sleep, "100000"]
    volumeMounts: [{name: volume, mountPath: /volume}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: %[1]s}}]
`

// TestADirectoryHasAQuota: a pod cannot write more than the size of its directory, and its neighbor
// is not limited by it. After an expansion it can write more. The deletion frees the space.
func TestADirectoryHasAQuota(t *testing.T) {
	used := usedBytes(t)
	for _, pod := range []string{"full", "neighbor"} {
		apply(t, pod)
	}
	if size := totalMiB(t, "full"); size != 64 {
		t.Errorf("df shows %d MiB, want 64", size)
	}
	write(t, "full", "first", 48, true)
	write(t, "full", "second", 32, false)
	if n := sizeMiB(t, "full"); n < 63 || n > 64 {
		t.Errorf("a full volume of 64 MiB has %d MiB", n)
	}
	write(t, "neighbor", "first", 48, true)
	run(t, "patch", "pvc", "full", "--type=merge", "--patch", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	await.NoError(t, "the claim has its new capacity", func() error {
		out, err := kube.Run(t.Context(), "get", "pvc", "full", "-o", "jsonpath={.status.capacity.storage}")
		if err == nil && out != "128Mi" {
			err = fmt.Errorf("the capacity is %s", out)
		}
		return err
	})
	if size := totalMiB(t, "full"); size != 128 {
		t.Errorf("after the expansion df shows %d MiB, want 128", size)
	}
	write(t, "full", "third", 48, true)
	write(t, "full", "fourth", 32, false)
	run(t, "delete", "pod,pvc", "full", "neighbor", "--timeout="+livetest.Patience.String())
	await.NoError(t, "the space is free", func() error {
		if now := usedBytes(t); now > used+4<<20 {
			return fmt.Errorf("%d bytes are in use, %d before", now, used)
		}
		return nil
	})
}

// apply creates a pod with a claim of the same name, and deletes them at the end of the test.
func apply(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := kube.Run(context.Background(), "delete", "pod,pvc", name, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	if err := kube.Apply(t.Context(), fmt.Sprintf(objects, name, guest.Name, testimages.Busybox)); err != nil {
		t.Fatal(err)
	}
	run(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout="+livetest.Patience.String())
}

// write writes a file in the volume of a pod. If it does not fit, the error is that of a full disk.
func write(t *testing.T, pod, file string, mib int, fits bool) {
	t.Helper()
	out, err := kube.Run(t.Context(), "exec", pod, "--", "sh", "-c",
		fmt.Sprintf("dd if=/dev/zero of=/volume/%s bs=1M count=%d conv=fsync 2>&1", file, mib))
	switch {
	case fits && err != nil:
		t.Errorf("%s cannot write %d MiB: %v: %s", pod, mib, err, out)
	case !fits && (err == nil || !strings.Contains(out+fmt.Sprint(err), "No space left on device")):
		t.Errorf("%s writes %d MiB more than its volume has: %v: %s", pod, mib, err, out)
	}
}

// totalMiB returns the size of the volume of a pod, by df.
func totalMiB(t *testing.T, pod string) int {
	t.Helper()
	return number(t, run(t, "exec", pod, "--", "sh", "-c", "df -m /volume | tail -1 | awk '{print $2}'"))
}

// sizeMiB returns the size of the blocks of all files in the volume of a pod.
func sizeMiB(t *testing.T, pod string) int {
	t.Helper()
	return number(t, run(t, "exec", pod, "--", "sh", "-c", "du -m -s /volume | cut -f1"))
}

// usedBytes returns the bytes in use on the guest's data disk.
func usedBytes(t *testing.T) int {
	t.Helper()
	out, err := guest.Run(t.Context(), "sh", "-c", "sync; df -k "+local.StorageDir+" | tail -1 | awk '{print $3}'")
	if err != nil {
		t.Fatal(err)
	}
	return number(t, out) << 10
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs kubectl and returns its output.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := kube.Run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
