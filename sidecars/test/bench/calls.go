package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
	"github.com/causeway-csi/causeway/test/figures"
)

// counted are the calls that change a volume. A driver gets each once for a volume, if nothing
// fails.
var counted = []string{"CreateVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "DeleteVolume"}

// callCase is a driver, and the limits of its sidecars.
type callCase struct {
	name      string
	takes     time.Duration // for each counted call
	unlimited bool          // more requests to the API server than upstream's 5 a second
	trivial   bool          // without ControllerPublishVolume
	// each claim is changed while its volume is made, so that the provisioner looks at it again at
	// once
	touched bool
}

// calls counts how often the driver is called again for a volume, and the objects that are left in
// the end. The claims are made while the sidecars start, so that caches are cold. Each round has an
// API server of its own.
func (b *bench) calls(ctx context.Context) error {
	for _, c := range []callCase{
		{name: "at once", unlimited: true},
		{name: "50 ms", takes: 50 * time.Millisecond, unlimited: true},
		{name: "200 ms", takes: 200 * time.Millisecond, unlimited: true},
		{name: "50 ms, 5 requests a second", takes: 50 * time.Millisecond},
		{name: "50 ms, claims change meanwhile", takes: 50 * time.Millisecond, unlimited: true, touched: true},
		{name: "50 ms, no ControllerPublishVolume", takes: 50 * time.Millisecond, unlimited: true, trivial: true},
	} {
		var sums [2]callCount
		for range b.rounds {
			for i, way := range []string{"separate", "combined"} {
				count, err := b.callsOf(ctx, c, way)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, way, err)
				}
				fmt.Fprintf(os.Stderr, "  driver that answers after %s, %s: %v\n", c.name, way, count)
				sums[i].add(count)
			}
		}
		add := func(what string, n func(callCount) int) {
			b.table.add(fmt.Sprintf("driver that answers after %s: %s", c.name, what), fmt.Sprint(n(sums[0])),
				fmt.Sprint(n(sums[1])), "", "")
		}
		for _, method := range counted {
			add(fmt.Sprintf("%s again, for %d volumes", method, b.rounds*b.claims),
				func(s callCount) int { return s.again[method] })
		}
		add("volumes deleted while attached", func(s callCount) int { return s.attached })
		add("objects left", func(s callCount) int { return s.left })
		if c.trivial {
			middle := func(s callCount) float64 { return figures.Median(s.deleted, time.Duration.Seconds) }
			b.table.compare("from the claims' deletion to DeleteVolume, s", middle(sums[0]), middle(sums[1]))
		}
	}
	return nil
}

// callCount is the result of a round.
type callCount struct {
	again    map[string]int  // by method: calls for a volume beyond the first
	attached int             // volumes that were deleted while there was a VolumeAttachment
	left     int             // PersistentVolumes, VolumeAttachments and volumes in the storage
	deleted  []time.Duration // from the claims' deletion to the volume's
}

func (c *callCount) add(o callCount) {
	if c.again == nil {
		c.again = map[string]int{}
	}
	for method, n := range o.again {
		c.again[method] += n
	}
	c.attached, c.left, c.deleted = c.attached+o.attached, c.left+o.left, append(c.deleted, o.deleted...)
}

func (c callCount) String() string {
	return fmt.Sprintf("again %v, deleted while attached %d, left %d", c.again, c.attached, c.left)
}

// callsOf starts a way on a new API server, and counts its calls.
func (b *bench) callsOf(ctx context.Context, c callCase, name string) (count callCount, err error) {
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		return count, err
	}
	r := &callRound{bench: &bench{options: b.options, dir: dir, binaries: b.binaries}, callCase: c}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(ctx); err != nil {
		return count, err
	}
	var limits []string
	if c.unlimited {
		limits = []string{"--kube-api-qps=100", "--kube-api-burst=200"}
	}
	way := r.separate(limits...)
	if name == "combined" {
		way = r.combined(limits...)
	}
	s, err := r.start(ctx, way)
	if err != nil {
		return count, err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := r.run(ctx); err != nil {
		return count, errors.Join(err, s.err())
	}
	return r.count(ctx)
}

// callRound is a round of a way.
type callRound struct {
	*bench
	callCase
	removing time.Time // when the claims were deleted
	freed    time.Time // when the first attachment was deleted
	names    sync.Map  // of claims, by UID
}

// The class whose volumes are made when a claim has a node.
const lateClass = "late"

// prepare starts the API server and the driver, and makes the classes and the node.
func (r *callRound) prepare(ctx context.Context) (err error) {
	if r.driver, err = rig.NewDriver(r.dir, rig.DriverOptions{Nodes: []string{"node-1"}, Adapt: r.adapt}); err != nil {
		return err
	}
	r.driver.Hook(r.wait)
	if r.plane, err = rig.StartPlane(ctx, controlplane.Options{Log: os.Stderr, Dir: r.dir}); err != nil {
		return err
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{className: storagev1.VolumeBindingImmediate,
		lateClass: storagev1.VolumeBindingWaitForFirstConsumer} {
		_, err := r.plane.Kube.StorageV1().StorageClasses().Create(ctx,
			&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: r.driver.Name,
				ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete), VolumeBindingMode: &mode}, byUser)
		if err != nil {
			return err
		}
	}
	if _, err := r.plane.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		byManager); err != nil {
		return err
	}
	_, err = r.plane.Kube.StorageV1().CSINodes().Create(ctx,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: r.driver.Name,
				NodeID: "node-1"}}}}, byManager)
	return err
}

// adapt takes ControllerPublishVolume away from a trivial driver.
func (r *callRound) adapt(answer proto.Message) {
	if can, ok := answer.(*csi.ControllerGetCapabilitiesResponse); ok && r.trivial {
		can.Capabilities = slices.DeleteFunc(can.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		})
	}
}

// wait makes a call take its time. A claim is touched once: the API server does not write a change
// that changes nothing.
func (r *callRound) wait(ctx context.Context, c *rig.Call) error {
	if !slices.Contains(counted, c.Method) {
		return nil
	}
	if name, ok := r.names.Load(strings.TrimPrefix(volumeOf(*c), "pvc-")); ok && r.touched &&
		c.Method == "CreateVolume" {
		touch := []byte(`{"metadata":{"annotations":{"bench.causeway.dev/touched":"yes"}}}`)
		_, err := r.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Patch(ctx, name.(string),
			types.MergePatchType, touch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return pause(ctx, r.takes)
}

// run makes claims and attachments, and deletes them.
func (r *callRound) run(ctx context.Context) error {
	if err := each(ctx, r.claims, r.claim); err != nil {
		return err
	}
	if err := r.until(ctx, "claims are bound", func(ctx context.Context) (int, error) {
		claims, err := r.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{})
		return countOf(claims.Items,
			func(c corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound }), err
	}); err != nil {
		return err
	}
	if err := each(ctx, r.claims, r.attach); err != nil {
		return err
	}
	if err := r.until(ctx, "volumes are attached", func(ctx context.Context) (int, error) {
		all, err := r.plane.Kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		return countOf(all.Items, func(a storagev1.VolumeAttachment) bool { return a.Status.Attached }), err
	}); err != nil {
		return err
	}
	return r.remove(ctx)
}

// countOf counts the objects for which is returns true.
func countOf[T any](all []T, is func(T) bool) (n int) {
	for _, o := range all {
		if is(o) {
			n++
		}
	}
	return n
}

// until waits until a count is that of the claims.
func (r *callRound) until(ctx context.Context, what string, count func(context.Context) (int, error)) error {
	err := rig.Until(ctx, func(ctx context.Context) error {
		n, err := count(ctx)
		if err == nil && n != r.claims {
			err = fmt.Errorf("%d of %d", n, r.claims)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// claim makes a claim. Every second claim has a node, as the scheduler sets it.
func (r *callRound) claim(ctx context.Context, i int) error {
	claims := r.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault)
	c := newClaim(claimName(i))
	if i%2 == 1 {
		c.Spec.StorageClassName = ptr.To(lateClass)
	}
	c, err := claims.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.names.Store(string(c.UID), c.Name)
	if i%2 == 0 {
		return nil
	}
	node := []byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"node-1"}}}`)
	_, err = claims.Patch(ctx, c.Name, types.MergePatchType, node, metav1.PatchOptions{})
	return err
}

// attach makes the attachment of a claim's volume, as the attach-detach controller does.
func (r *callRound) attach(ctx context.Context, i int) error {
	c, err := r.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Get(ctx, claimName(i),
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	_, err = r.plane.Kube.StorageV1().VolumeAttachments().Create(ctx,
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: claimName(i)},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: r.driver.Name, NodeName: "node-1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &c.Spec.VolumeName}}}, byManager)
	return err
}

// remove deletes the claims, and some seconds later the attachments, as a node does that unstages
// late.
func (r *callRound) remove(ctx context.Context) error {
	r.removing = time.Now()
	if err := r.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).DeleteCollection(ctx,
		metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	r.freed = time.Now()
	err := each(ctx, r.claims, func(ctx context.Context, i int) error {
		return gone(r.plane.Kube.StorageV1().VolumeAttachments().Delete(ctx, claimName(i), metav1.DeleteOptions{}))
	})
	if err != nil {
		return err
	}
	// Objects that are left after this time stay.
	patient, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	rig.Until(patient, func(ctx context.Context) error {
		n, err := r.objects(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d objects are left", n)
		}
		return err
	})
	return ctx.Err()
}

// objects counts the volumes in the API server and in the storage.
func (r *callRound) objects(ctx context.Context) (int, error) {
	volumes, err := r.plane.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	attachments, err := r.plane.Kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	stored, _, err := r.driver.Storage.List(ctx, "", 1<<20)
	return len(volumes.Items) + len(attachments.Items) + len(stored), err
}

// count counts calls.
func (r *callRound) count(ctx context.Context) (count callCount, err error) {
	count.again = map[string]int{}
	for _, method := range counted {
		seen := map[string]bool{}
		for _, c := range r.driver.Calls(method) {
			switch {
			case seen[volumeOf(c)]:
				count.again[method]++
			case method == "DeleteVolume":
				count.deleted = append(count.deleted, c.Start.Sub(r.removing))
				if c.Start.Before(r.freed) {
					count.attached++
				}
			}
			seen[volumeOf(c)] = true
		}
	}
	count.left, err = r.objects(ctx)
	return count, err
}

// volumeOf is the volume that a call is for: its name where it has no ID yet.
func volumeOf(c rig.Call) string {
	if r, ok := c.Request.(interface{ GetVolumeId() string }); ok {
		return r.GetVolumeId()
	}
	return c.VolumeName()
}

// close ends the API server and the driver, and removes their files.
func (r *callRound) close() error { return errors.Join(r.bench.close(), os.RemoveAll(r.dir)) }
