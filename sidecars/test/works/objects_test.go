package works

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writer is the field manager of the tests' writes.
const writer = "works-test"

var created = metav1.CreateOptions{FieldManager: writer}

// lab is the place of a test: a namespace, and a name for objects without a namespace, beside a
// process of csi-sidecars.
type lab struct {
	*testing.T
	s    *sidecars
	name string // of the namespace, the StorageClass and other classes
}

// newLab makes a namespace and a StorageClass.
func newLab(t *testing.T, s *sidecars, change ...func(*storagev1.StorageClass)) *lab {
	t.Helper()
	ns, err := world.Kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"}}, created)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{T: t, s: s, name: ns.Name}
	yes := true
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: l.name}, Provisioner: s.driver.Name,
		AllowVolumeExpansion: &yes}
	for _, c := range change {
		c(class)
	}
	must(world.Kube.StorageV1().StorageClasses().Create(t.Context(), class, created))(t)
	return l
}

// must ends the test on an error: must(f())(t).
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// late makes a class wait for the first consumer.
func late(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
}

// claim makes a claim for 1 GiB of the lab's class.
func (l *lab) claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	l.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &l.name,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, change := range change {
		change(c)
	}
	return must(world.Kube.CoreV1().PersistentVolumeClaims(l.name).Create(l.Context(), c, created))(l)
}

// bound makes a claim, waits until the controller manager has bound it, and returns it with its
// volume.
func (l *lab) bound(name string,
	change ...func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	l.Helper()
	l.claim(name, change...)
	c := l.awaitClaim(name, "it is bound",
		func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound })
	return c, l.volume(c.Spec.VolumeName)
}

// from sets the source of a claim's volume.
func from(kind, name string) func(*corev1.PersistentVolumeClaim) {
	source := &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
	if kind == "VolumeSnapshot" {
		group := snapshotv1.GroupName
		source.APIGroup = &group
	}
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = source }
}

func (l *lab) get(claim string) *corev1.PersistentVolumeClaim {
	l.Helper()
	return must(world.Kube.CoreV1().PersistentVolumeClaims(l.name).Get(l.Context(), claim, metav1.GetOptions{}))(l)
}

func (l *lab) volume(name string) *corev1.PersistentVolume {
	l.Helper()
	return must(world.Kube.CoreV1().PersistentVolumes().Get(l.Context(), name, metav1.GetOptions{}))(l)
}

// awaitClaim waits until a claim is as it should be, and returns it.
func (l *lab) awaitClaim(name, what string, is func(*corev1.PersistentVolumeClaim) bool) *corev1.PersistentVolumeClaim {
	l.Helper()
	return awaitObject(l.T, "claim "+name, what, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return world.Kube.CoreV1().PersistentVolumeClaims(l.name).Get(ctx, name, metav1.GetOptions{})
	}, is)
}

// awaitObject gets an object until it is as it should be.
func awaitObject[O any](t *testing.T, name, what string, get func(context.Context) (O, error), is func(O) bool) O {
	t.Helper()
	var o O
	until(t, name+": "+what, func(ctx context.Context) (err error) {
		if o, err = get(ctx); err != nil {
			return err
		}
		if !is(o) {
			return fmt.Errorf("it is not: %+v", o)
		}
		return nil
	})
	return o
}

// awaitGone waits until get finds no object.
func awaitGone[O any](t *testing.T, name string, get func(context.Context) (O, error)) {
	t.Helper()
	until(t, name+" is gone", func(ctx context.Context) error {
		o, err := get(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("it is there: %+v", o))
	})
}

// remove deletes a claim, and waits until its volume is gone.
func (l *lab) remove(c *corev1.PersistentVolumeClaim) {
	l.Helper()
	if err := world.Kube.CoreV1().PersistentVolumeClaims(l.name).Delete(l.Context(), c.Name,
		metav1.DeleteOptions{}); err != nil {
		l.Fatal(err)
	}
	l.volumeGone(c.Spec.VolumeName)
}

func (l *lab) volumeGone(name string) {
	l.Helper()
	awaitGone(l.T, "volume "+name, func(ctx context.Context) (*corev1.PersistentVolume, error) {
		return world.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	})
}

// calls are those of a method whose request is about something: an ID or a name in it.
func calls[R interface{ String() string }](s *sidecars, method, about string) []R {
	var of []R
	for _, c := range s.driver.Calls(method) {
		if r := c.Request.(R); strings.Contains(r.String(), about) {
			of = append(of, r)
		}
	}
	return of
}

// onlyCall is the only call of a method for an object.
func onlyCall[R interface{ String() string }](l *lab, method, about string) R {
	l.Helper()
	of := calls[R](l.s, method, about)
	if len(of) != 1 {
		l.Fatalf("there were %d calls %s about %s, not 1: %v", len(of), method, about, of)
	}
	return of[0]
}

// sameCall is the call of a method for an object, which upstream's controllers may repeat: their
// caches may not show the latest changes.
func sameCall[R interface {
	proto.Message
	String() string
}](l *lab, method, about string) R {
	l.Helper()
	of := calls[R](l.s, method, about)
	if len(of) == 0 {
		l.Fatalf("there was no call %s about %s", method, about)
	}
	for _, r := range of {
		if !proto.Equal(r, of[0]) {
			l.Fatalf("the calls %s about %s differ: %v", method, about, of)
		}
	}
	return of[0]
}
