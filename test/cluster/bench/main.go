// Command bench measures how long pods with a claim each take from their creation until they are
// ready, beside the same pods with an emptyDir, in a cluster of two nodes on this machine.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

func main() {
	local.Main()
	var b bench
	flag.IntVar(&b.pods, "pods", 50, "how many pods are created at once")
	flag.IntVar(&b.rounds, "rounds", 5, "how often each kind is measured, by turns")
	flag.BoolVar(&b.keep, "keep", false, "leave the cluster as it is at the end, to look at it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends this at once
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// bench is the benchmark.
type bench struct {
	pods, rounds int
	nodes        []local.Node
	keep         bool
	client       kubernetes.Interface
}

// kinds are the volumes of the pods. The others are compared with the first.
var kinds = []struct{ name, class string }{
	{"emptyDir", ""},
	{"claim for a directory", "causeway-hostpath"},
	{"claim for an image (ext4)", "causeway-hostpath-image"},
}

func (b *bench) run(ctx context.Context) (err error) {
	c, err := local.New("bench")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := c.Up(ctx, provider.Options{Nodes: 2, Log: os.Stderr}); err != nil {
		return err
	}
	if !b.keep {
		defer func() { err = errors.Join(err, c.Down(context.WithoutCancel(ctx))) }()
	}
	k, err := kubectl.New(ctx, c, dir)
	if err != nil {
		return err
	}
	if err := install.Driver(ctx, c, k, os.Stderr); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000 // all at once
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if b.nodes, err = c.Nodes(); err != nil {
		return err
	}
	return b.measure(ctx)
}

// measure takes each kind by turns, once without counting.
func (b *bench) measure(ctx context.Context) error {
	p50, p95 := make([][]time.Duration, len(kinds)), make([][]time.Duration, len(kinds))
	for round := range b.rounds + 1 {
		for i, kind := range kinds {
			times, err := b.once(ctx, kind.class)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			slices.Sort(times)
			fmt.Fprintf(os.Stderr, "round %d: %s: p50 %.2f s, p95 %.2f s\n", round, kind.name,
				percentile(times, 50).Seconds(), percentile(times, 95).Seconds())
			if round > 0 {
				p50[i], p95[i] = append(p50[i], percentile(times, 50)), append(p95[i], percentile(times, 95))
			}
		}
	}
	fmt.Printf("%d pods at once, on 2 nodes, from creation to Ready; medians of %d rounds.\n\n", b.pods, b.rounds)
	fmt.Println("| Volume | p50 | p95 | p50, of emptyDir's | p95 |\n|---|---|---|---|---|")
	for i, kind := range kinds {
		fmt.Printf("| %s | %.2f s | %.2f s | %.2f | %.2f |\n", kind.name, median(p50[i]).Seconds(),
			median(p95[i]).Seconds(), ratio(p50[i], p50[0]), ratio(p95[i], p95[0]))
	}
	return nil
}

// ratio is the median of the ratios in each round: the two kinds of a round are measured in
// succession.
func ratio(of, to []time.Duration) float64 {
	r := make([]float64, len(of))
	for i := range of {
		r[i] = of[i].Seconds() / to[i].Seconds()
	}
	return median(r)
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// percentile returns a percentile of sorted times.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// once creates the pods, each with a claim if class is not empty, and returns their start times. It
// removes them.
func (b *bench) once(ctx context.Context, class string) (times []time.Duration, err error) {
	ns, err := b.client.CoreV1().Namespaces().Create(ctx,
		&core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "bench-"}}, meta.CreateOptions{})
	if err != nil {
		return nil, err
	}
	before, err := b.containers(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.remove(context.WithoutCancel(ctx), ns.Name, before)) }()
	if err := until(ctx, "the namespace's service account", func() (bool, error) {
		_, err := b.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", meta.GetOptions{})
		return err == nil, nil
	}); err != nil {
		return nil, err
	}
	pods := b.client.CoreV1().Pods(ns.Name)
	empty, err := pods.List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	// The API server ends a watch now and then; this watch continues after the last event.
	events, err := watchtools.NewRetryWatcherWithContext(ctx, empty.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface,
			error) {
			return pods.Watch(ctx, o)
		},
	})
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	created := make([]time.Time, b.pods)
	errs := make([]error, b.pods)
	var creating sync.WaitGroup
	for i := range b.pods {
		creating.Go(func() {
			created[i] = time.Now()
			errs[i] = b.create(ctx, ns.Name, fmt.Sprintf("pod-%d", i), class)
		})
	}
	ready, err := awaitReady(ctx, events.ResultChan(), b.pods)
	creating.Wait()
	if err := errors.Join(errors.Join(errs...), err); err != nil {
		return nil, err
	}
	for i := range b.pods {
		times = append(times, ready[fmt.Sprintf("pod-%d", i)].Sub(created[i]))
	}
	return times, nil
}

// awaitReady returns when each of n pods was ready.
func awaitReady(ctx context.Context, events <-chan watch.Event, n int) (map[string]time.Time, error) {
	ready := map[string]time.Time{}
	limit := time.After(3 * time.Minute)
	for len(ready) < n {
		select {
		case e, ok := <-events:
			if !ok {
				return nil, errors.New("the watch has ended")
			}
			if p, ok := e.Object.(*core.Pod); ok && isReady(p) && ready[p.Name].IsZero() {
				ready[p.Name] = time.Now()
			}
		case <-limit:
			return nil, fmt.Errorf("%d of %d pods are ready after 3 minutes", len(ready), n)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return ready, nil
}

func isReady(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodReady && c.Status == core.ConditionTrue
	})
}

// create makes a pod, and first its claim.
func (b *bench) create(ctx context.Context, namespace, name, class string) error {
	at := int64(0)
	source := core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}
	if class != "" {
		claim := &core.PersistentVolumeClaim{
			ObjectMeta: meta.ObjectMeta{Name: name},
			Spec: core.PersistentVolumeClaimSpec{
				AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce}, StorageClassName: &class,
				Resources: core.VolumeResourceRequirements{Requests: core.ResourceList{
					core.ResourceStorage: resource.MustParse("32Mi")}},
			},
		}
		if _, err := b.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim,
			meta.CreateOptions{}); err != nil {
			return err
		}
		source = core.VolumeSource{PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PodSpec{
			TerminationGracePeriodSeconds: &at,
			Containers: []core.Container{{
				Name: "c", Image: testimages.Busybox, Command: []string{"sleep", "1000000"},
				VolumeMounts: []core.VolumeMount{{Name: "v", MountPath: "/v"}},
			}},
			Volumes: []core.Volume{{Name: "v", VolumeSource: source}},
		},
	}
	_, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, meta.CreateOptions{})
	return err
}

// remove removes a namespace with all that is in it, and waits until no volume of it is left and
// the nodes have as many containers as before, so that nothing of it is done while the next kind is
// measured.
func (b *bench) remove(ctx context.Context, namespace string, before int) error {
	if err := b.client.CoreV1().Namespaces().Delete(ctx, namespace, meta.DeleteOptions{}); err != nil {
		return err
	}
	err := until(ctx, "the end of namespace "+namespace, func() (bool, error) {
		left, err := b.client.CoreV1().Namespaces().List(ctx,
			meta.ListOptions{FieldSelector: "metadata.name=" + namespace})
		if err != nil || len(left.Items) > 0 {
			return false, err
		}
		volumes, err := b.client.CoreV1().PersistentVolumes().List(ctx, meta.ListOptions{})
		if err != nil || len(volumes.Items) > 0 {
			return false, err
		}
		now, err := b.containers(ctx)
		return now <= before, err
	})
	time.Sleep(settle)
	return err
}

// settle is a pause between two measurements, for events that cannot be observed: kubelets clean up
// for a while.
const settle = 10 * time.Second

// containers returns the number of containers of the nodes, in any state.
func (b *bench) containers(ctx context.Context) (int, error) {
	all := 0
	for _, n := range b.nodes {
		out, err := n.Run(ctx, "ctr", "-n", "k8s.io", "containers", "ls", "-q")
		if err != nil {
			return 0, err
		}
		all += len(strings.Fields(out))
	}
	return all, nil
}

// until waits up to three minutes until something is so.
func until(ctx context.Context, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
