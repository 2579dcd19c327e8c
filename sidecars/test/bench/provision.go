package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/causeway-csi/causeway/test/figures"
)

// round is the label of claims that are made together.
const round = "bench.causeway.dev/round"

// provisioning times how long claims take to be bound, each way in turn, from the creation of the
// first to the last.
func (b *bench) provisioning(ctx context.Context, title string, limits []string) error {
	var times [2][]time.Duration
	for n := range b.rounds {
		for i, w := range []way{b.separate(limits...), b.combined(limits...)} {
			took, err := b.provision(ctx, w, fmt.Sprintf("%s-%d", w.name, n))
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			fmt.Fprintf(os.Stderr, "  %d claims with %s, %s: %v\n", b.claims, title, w.name,
				took.Round(time.Millisecond))
			times[i] = append(times[i], took)
		}
	}
	middle := func(times []time.Duration) float64 { return figures.Median(times, time.Duration.Seconds) }
	b.table.compare(fmt.Sprintf("%d claims to bound volumes, %s, s", b.claims, title), middle(times[0]),
		middle(times[1]), figures.AtMost(1.05))
	return nil
}

// provision starts a way, has it make volumes, and ends it.
func (b *bench) provision(ctx context.Context, w way, name string) (took time.Duration, err error) {
	s, err := b.start(ctx, w)
	if err != nil {
		return 0, err
	}
	defer s.kill()
	defer func() { // no other program removes the claims
		s.kill()
		err = errors.Join(err, b.unprovision(context.WithoutCancel(ctx), name))
	}()
	patient, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if _, err := b.bind(patient, name, "first", 1); err != nil { // it leads, and has read all objects
		return 0, errors.Join(err, s.err())
	}
	if err := pause(ctx, 5*time.Second); err != nil { // the others have too, and the limits are full again
		return 0, err
	}
	if took, err = b.bind(patient, name, "claim", b.claims); err != nil {
		err = errors.Join(err, s.err(), fmt.Errorf("%s: %s", s.names[len(s.names)-1], lastOf(s.processes[0].Log())))
	}
	return took, err
}

// bind makes claims, and returns how long it took until all were bound.
func (b *bench) bind(ctx context.Context, label, prefix string, n int) (time.Duration, error) {
	claims := b.plane.Kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault)
	seen, err := claims.Watch(ctx, metav1.ListOptions{LabelSelector: round + "=" + label})
	if err != nil {
		return 0, err
	}
	defer seen.Stop()
	start := time.Now()
	made := make(chan error, 1)
	go func() {
		made <- each(ctx, n, func(ctx context.Context, i int) error {
			c := newClaim(fmt.Sprintf("%s-%s-%03d", label, prefix, i))
			c.Labels = map[string]string{round: label}
			_, err := claims.Create(ctx, c, metav1.CreateOptions{})
			return err
		})
	}()
	bound := map[types.UID]bool{}
	for e := range seen.ResultChan() {
		if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase == corev1.ClaimBound &&
			isPrefix(c, label+"-"+prefix) {
			bound[c.UID] = true
		}
		if len(bound) == n {
			return time.Since(start), <-made
		}
	}
	return 0, fmt.Errorf("%d of %d claims are bound: %w", len(bound), n,
		errors.Join(ctx.Err(), errors.New("the watch ended")))
}

func isPrefix(c *corev1.PersistentVolumeClaim, prefix string) bool {
	return len(c.Name) >= len(prefix) && c.Name[:len(prefix)] == prefix
}

// unprovision removes a round's claims and volumes, finalizers included: no way is running, and the
// next way would have to complete the deletions.
func (b *bench) unprovision(ctx context.Context, label string) error {
	core := b.plane.Kube.CoreV1()
	claims, err := core.PersistentVolumeClaims(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: round + "=" + label})
	if err != nil {
		return err
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	return each(ctx, len(claims.Items), func(ctx context.Context, i int) error {
		c := claims.Items[i]
		own := core.PersistentVolumeClaims(c.Namespace)
		_, err := own.Patch(ctx, c.Name, types.MergePatchType, free, metav1.PatchOptions{})
		err = errors.Join(gone(err), gone(own.Delete(ctx, c.Name, metav1.DeleteOptions{})))
		if c.Spec.VolumeName == "" {
			return err
		}
		v, getting := core.PersistentVolumes().Patch(ctx, c.Spec.VolumeName, types.MergePatchType, free,
			metav1.PatchOptions{})
		if getting != nil {
			return errors.Join(err, gone(getting))
		}
		err = errors.Join(err, gone(core.PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})))
		return errors.Join(err, b.driver.Storage.Delete(ctx, v.Spec.CSI.VolumeHandle, nil))
	})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
