package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// How many there are of each at 100 percent.
const (
	nodes          = 500
	classes        = 20
	volumes        = 2000 // and claims, and attachments
	snapshotsCount = 500  // and their contents
	pods           = 5000
)

// Who writes to objects, as managedFields have it.
var (
	byManager     = metav1.CreateOptions{FieldManager: "kube-controller-manager"}
	byUser        = metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"}
	byProvisioner = metav1.CreateOptions{FieldManager: "csi-provisioner"}
	thenKubelet   = metav1.UpdateOptions{FieldManager: "kubelet"}
	thenAttacher  = metav1.UpdateOptions{FieldManager: "csi-attacher"}
	thenSnapshots = metav1.UpdateOptions{FieldManager: "snapshot-controller"}
	thenSidecar   = metav1.UpdateOptions{FieldManager: "csi-snapshotter"}
)

// loader fills an API server, and the driver with the volumes that the API server speaks of.
type loader struct {
	kube      kubernetes.Interface
	snapshots snapshots.Interface
	driver    csi.ControllerClient
	name      string // the driver's
	percent   int
}

// load fills the API server as a cluster's components would: each object is written by those that
// do so in a cluster, so that its managedFields are the API server's own.
func (b *bench) load(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+b.driver.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	config := b.plane.Config()
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	l := &loader{snapshots: snapshots.NewForConfigOrDie(config), driver: csi.NewControllerClient(conn),
		name: b.driver.Name, percent: b.percent}
	config.ContentType = runtime.ContentTypeProtobuf
	l.kube = kubernetes.NewForConfigOrDie(config)
	for _, kind := range []struct {
		name string
		n    int
		make func(context.Context, int) error
	}{
		{"StorageClasses", classes, l.class},
		{"Nodes", nodes, l.node},
		{"volumes", volumes, l.volume},
		{"Pods", pods, l.pod},
		{"VolumeSnapshots", snapshotsCount, l.snapshot},
	} {
		n := max(1, kind.n*b.percent/100)
		start := time.Now()
		if err := each(ctx, n, kind.make); err != nil {
			return fmt.Errorf("make %s: %w", kind.name, err)
		}
		fmt.Fprintf(os.Stderr, "  %d %s made in %v\n", n, kind.name, time.Since(start).Round(time.Millisecond))
	}
	return errors.Join(l.settled(ctx), l.tellSize(ctx))
}

// tellSize prints the size of a pod, on which most figures depend.
func (l *loader) tellSize(ctx context.Context) error {
	pods, err := l.kube.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(pods.Items) == 0 {
		return err
	}
	text, err := json.Marshal(pods.Items[0])
	fmt.Fprintf(os.Stderr, "  a pod has %.1f KiB as JSON, %.1f of Protobuf\n", float64(len(text))/1024,
		float64(pods.Items[0].Size())/1024)
	return err
}

// settled waits until the binder has bound all claims.
func (l *loader) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return rig.Until(ctx, func(ctx context.Context) error {
		bound, err := l.bound(ctx)
		if err == nil && bound < l.share(volumes) {
			err = fmt.Errorf("%d of %d claims are bound", bound, l.share(volumes))
			pause(ctx, time.Second)
		}
		return err
	})
}

func (l *loader) bound(ctx context.Context) (n int, err error) {
	claims, err := l.kube.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, c := range claims.Items {
		if c.Status.Phase == "Bound" {
			n++
		}
	}
	return n, nil
}

// share returns the number of objects at the current percentage, of n at 100 percent.
func (l *loader) share(n int) int { return max(1, n*l.percent/100) }

// each calls f with 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(24)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}
