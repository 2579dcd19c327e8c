package fails

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// scene belongs to a test: a driver, its class, and a namespace for claims and leases, on a plane
// that others may use too.
type scene struct {
	*testing.T
	plane  *rig.Plane
	driver *rig.Driver
	dir    string
	ns     string
}

var scenes atomic.Int64

// newScene makes a scene on the shared plane.
func newScene(t *testing.T) *scene {
	t.Parallel()
	return sceneOn(t, world.Plane)
}

func sceneOn(t *testing.T, plane *rig.Plane) *scene {
	t.Helper()
	return sceneWith(t, plane, rig.DriverOptions{})
}

// sceneWith makes a scene whose driver has these options, and a name and a node of the scene's.
func sceneWith(t *testing.T, plane *rig.Plane, o rig.DriverOptions) *scene {
	t.Helper()
	s := &scene{T: t, plane: plane, ns: fmt.Sprintf("fails-%d", scenes.Add(1))}
	o.Name, o.Nodes = s.ns+".csi.causeway.dev", []string{"node-1"}
	var err error
	if s.dir, err = os.MkdirTemp(world.dir, ""); err != nil {
		t.Fatal(err)
	}
	if s.driver, err = rig.NewDriver(s.dir, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.driver.Stop() })
	s.makeClass()
	return s
}

// makeClass makes the namespace and the class.
func (s *scene) makeClass() {
	s.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}
	if _, err := s.plane.Kube.CoreV1().Namespaces().Create(s.Context(), ns, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Provisioner: s.driver.Name,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(true),
	}
	if _, err := s.plane.Kube.StorageV1().StorageClasses().Create(s.Context(), class,
		metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// until waits for an event.
func (s *scene) until(event string, try func(context.Context) error) {
	s.Helper()
	ctx := await.Context(s.T)
	await.NoError(s.T, event, func() error { return try(ctx) })
}

// claim makes the claims with these numbers, a few at once.
func (s *scene) claim(from, to int) {
	s.Helper()
	s.each(from, to, func(name string) error { return s.makeClaim(s.Context(), name) })
}

// makeClaim makes a claim of the scene's class.
func (s *scene) makeClaim(ctx context.Context, name string) error {
	_, err := s.plane.Kube.CoreV1().PersistentVolumeClaims(s.ns).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.ns, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}, metav1.CreateOptions{})
	return err
}

// claimName is the name of the claim with a number.
func claimName(n int) string { return fmt.Sprintf("claim-%03d", n) }

// each does something with the claims' names from-to, a few at once.
func (s *scene) each(from, to int, do func(name string) error) {
	s.Helper()
	const atOnce = 8
	failed := make(chan error, atOnce)
	var next atomic.Int64
	next.Store(int64(from))
	for range atOnce {
		go func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(to) {
					failed <- nil
					return
				}
				if err := do(claimName(int(n))); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	var err error
	for range atOnce {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// volumes are those of the driver's PersistentVolumes.
func (s *scene) volumes(ctx context.Context) ([]corev1.PersistentVolume, error) {
	all, err := s.plane.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var own []corev1.PersistentVolume
	for _, v := range all.Items {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == s.driver.Name {
			own = append(own, v)
		}
	}
	return own, nil
}

// stored is how many volumes the driver's storage has.
func (s *scene) stored() int {
	s.Helper()
	all, more, err := s.driver.Storage.List(s.Context(), "", 1<<20)
	if err != nil || more {
		s.Fatalf("the storage's list: more %t, %v", more, err)
	}
	return len(all)
}

// bound waits until n claims are bound, each to a volume of its own, and there are no more volumes
// than that.
func (s *scene) bound(n int) {
	s.Helper()
	s.until("all claims are bound", func(ctx context.Context) error {
		claims, err := s.plane.Kube.CoreV1().PersistentVolumeClaims(s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		to := map[string]bool{}
		for _, c := range claims.Items {
			if c.Status.Phase == corev1.ClaimBound {
				to[c.Spec.VolumeName] = true
			}
		}
		if len(to) != n {
			return fmt.Errorf("%d of %d", len(to), n)
		}
		return nil
	})
	volumes, err := s.volumes(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	handles := map[string]bool{}
	for _, v := range volumes {
		handles[v.Spec.CSI.VolumeHandle] = true
	}
	if len(volumes) != n || len(handles) != n || s.stored() != n {
		s.Errorf("%d claims have %d PersistentVolumes with %d handles, and the storage has %d volumes", n, len(volumes),
			len(handles), s.stored())
	}
}

// emptied deletes all claims and waits until nothing is left of them, here and there.
func (s *scene) emptied() {
	s.Helper()
	if err := s.plane.Kube.CoreV1().PersistentVolumeClaims(s.ns).DeleteCollection(s.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		s.Fatal(err)
	}
	s.until("all is deleted", func(ctx context.Context) error {
		volumes, err := s.volumes(ctx)
		if err == nil && (len(volumes) > 0 || s.stored() > 0) {
			err = fmt.Errorf("there are %d PersistentVolumes, and %d volumes in the storage", len(volumes), s.stored())
		}
		return err
	})
}

// alone fails where two processes had calls for the same volume at once, and reports the number of
// repeated calls: a repeated call is legal after the end of a leader, and makes nothing twice.
func (s *scene) alone() {
	s.Helper()
	calls := s.driver.Calls("CreateVolume")
	last := map[string][]rig.Call{}
	twice := 0
	for _, c := range calls {
		name := c.VolumeName()
		for _, other := range last[name] {
			if other.PID != c.PID && (other.End.IsZero() || other.End.After(c.Start)) {
				s.Errorf("%s: process %d had a call from %v to %v, and process %d began one at %v", name, other.PID,
					other.Start, other.End, c.PID, c.Start)
			}
			if other.Err == nil {
				twice++
			}
		}
		last[name] = append(last[name], c)
	}
	s.Logf("%d CreateVolume for %d names, %d of them after one that succeeded", len(calls), len(last), twice)
}

// slow makes the driver take its time for a volume. Who goes away meanwhile gets none.
func (s *scene) slow(d time.Duration) {
	s.driver.Hook(func(ctx context.Context, c *rig.Call) error {
		if c.Method != "CreateVolume" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	})
}

// called waits until the driver has got n calls to make a volume.
func (s *scene) called(n int) {
	s.Helper()
	s.until("the driver is called", func(context.Context) error {
		if got := len(s.driver.Calls("CreateVolume")); got < n {
			return fmt.Errorf("%d of %d calls", got, n)
		}
		return nil
	})
}

// lease returns a lease of the scene.
func (s *scene) lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	return s.plane.Kube.CoordinationV1().Leases(s.ns).Get(ctx, name, metav1.GetOptions{})
}

// holder is who has a lease, or empty.
func holder(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, "") }

// released fails where a lease of the scene has a holder.
func (s *scene) released() {
	s.Helper()
	all, err := s.plane.Kube.CoordinationV1().Leases(s.ns).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if len(all.Items) == 0 {
		s.Error("there are no leases at all")
	}
	for _, l := range all.Items {
		if holder(&l) != "" {
			s.Errorf("the lease %s is still held by %s", l.Name, holder(&l))
		}
	}
}

// combined is the name of the single lease.
func (s *scene) combined() string { return "csi-sidecars-" + s.dashed() }

// dashed is the driver's name as upstream has it in leases.
func (s *scene) dashed() string { return strings.ReplaceAll(s.driver.Name, ".", "-") }
