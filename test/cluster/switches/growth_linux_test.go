package switches

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/promtest"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// scrape has the statistics of volumes of the kubelets, as a Prometheus of a cluster has.
const scrape = `global: {scrape_interval: 2s, scrape_timeout: 2s}
scrape_configs:
- job_name: kubelet
  scheme: https
  tls_config: {ca_file: KUBE/ca.crt, cert_file: KUBE/client.crt, key_file: KUBE/client.key}
  kubernetes_sd_configs: [{role: node, kubeconfig_file: KUBE/kubeconfig}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_node_name], target_label: node}
  - {source_labels: [node], target_label: __metrics_path__, replacement: "/api/v1/nodes/${1}/proxy/metrics"}
  - {target_label: __address__, replacement: API_SERVER}
  metric_relabel_configs:
  - {action: keep, source_labels: [__name__], regex: kubelet_volume_stats_.*}
`

const gibi = 1 << 30

// TestGrowth: pvc-autoresizer grows the claim of an image that fills, the pod sees the larger
// filesystem without a restart, and the growth ends at the limit. The program is that of
// CAUSEWAY_PVC_AUTORESIZER, else a substitute with the same rules.
func TestGrowth(t *testing.T) {
	s := begin(t)
	address, err := cluster.MachineAddress()
	s.must(err)
	p := promtest.Start(t, kube, address, scrape, nil)
	round := s.autoresizer(p)

	annotations := `, annotations: {resize.topolvm.io/storage_limit: 2500Mi, resize.topolvm.io/threshold: "30%", ` +
		`resize.topolvm.io/increase: 512Mi}`
	s.apply(claim("data", "growing", "1Gi", annotations), claim("plain", "growing", "400Mi", ""),
		pod("writer", "", "data", "plain"))
	s.runs("writer")
	uid, size := s.value("pod/writer", "{.metadata.uid}"), s.bytes("data")
	s.in("writer", "dd if=/dev/zero of=/plain/file bs=1M count=250 2>&1")

	for _, step := range []struct {
		write int64 // MiB
		want  string
	}{
		{800, "2Gi"},    // 1.5 GiB, rounded up to whole GiB
		{700, "2500Mi"}, // the limit
	} {
		s.in("writer", fmt.Sprintf("dd if=/dev/zero of=/data/%d bs=1M count=%[1]d conv=fsync 2>&1", step.write))
		start := time.Now()
		await.NoError(s, "the capacity is "+step.want, func() error {
			round()
			return same(step.want, s.value("pvc/data", "{.status.capacity.storage}"))
		})
		await.NoError(s, "the filesystem is larger", func() error {
			if now := s.bytes("data"); now <= size {
				return fmt.Errorf("it has %d bytes, as before", now)
			}
			return nil
		})
		t.Logf("%s, and a larger filesystem, %.0f s after a write", step.want, time.Since(start).Seconds())
		size = s.bytes("data")
	}
	s.in("writer", "dd if=/dev/zero of=/data/more bs=1M count=600 conv=fsync 2>&1")
	await.NoError(s, "Prometheus knows that the volume is full", func() error {
		stats, err := volumes(p)
		if v := stats[s.namespace+"/data"]; err == nil && v["available_bytes"] > 0.3*v["capacity_bytes"] {
			err = fmt.Errorf("it has %v", v)
		}
		return err
	})
	for range 3 { // the resizer sees that, too
		round()
	}
	s.same("the request at the limit", "2500Mi", s.value("pvc/data", "{.spec.resources.requests.storage}"))
	s.same("a claim without a limit", "400Mi", s.value("pvc/plain", "{.spec.resources.requests.storage}"))
	s.same("the pod", uid, s.value("pod/writer", "{.metadata.uid}"))
	s.same("the pod's restarts", "0", s.value("pod/writer", "{.status.containerStatuses[0].restartCount}"))
}

// TestStatisticsForGrowth: the kubelet exports the statistics of each kind of volume that
// pvc-autoresizer needs: it ignores a volume without any of the four.
func TestStatisticsForGrowth(t *testing.T) {
	s := begin(t)
	address, err := cluster.MachineAddress()
	s.must(err)
	p := promtest.Start(t, kube, address, scrape, nil)
	kinds := []string{directories, images, "xfs", "btrfs"}
	for _, class := range kinds {
		s.apply(claim(class, class, "400Mi", ""))
	}
	s.apply(pod("all", "", kinds...))
	s.runs("all")
	for _, class := range kinds {
		await.NoError(s, "there are statistics of "+class, func() error {
			all, err := volumes(p)
			v := all[s.namespace+"/"+class]
			if err == nil && (len(v) != 4 || v["available_bytes"] == 0) {
				err = fmt.Errorf("it has %v", v)
			}
			return err
		})
	}
}

// bytes returns the size of a volume in its pod.
func (s *scene) bytes(claim string) int64 {
	s.Helper()
	return s.number(s.in("writer", "df -k /"+claim+" | tail -1 | awk '{print $2}'")) * 1024
}

// interval is that of pvc-autoresizer.
const interval = 5 * time.Second

// autoresizer starts the resizer, and ends it with the test. round is a round of the resizer.
func (s *scene) autoresizer(p promtest.Server) (round func()) {
	s.Helper()
	if program := os.Getenv("CAUSEWAY_PVC_AUTORESIZER"); program != "" {
		s.realResizer(nodes[0], program, p)
		return realRound
	}
	s.Log("a substitute for pvc-autoresizer: CAUSEWAY_PVC_AUTORESIZER is not set")
	return func() {
		if err := resize(s.Context(), p); err != nil {
			s.Log("the substitute: ", err)
		}
	}
}

// realRound waits for the next round of pvc-autoresizer.
func realRound() { time.Sleep(interval) }

// realResizer runs pvc-autoresizer on a node, as it must find the namespace of its lease where a
// pod has it.
func (s *scene) realResizer(n local.Node, program string, p promtest.Server) {
	s.Helper()
	binary, err := os.Open(program)
	s.must(err)
	defer binary.Close()
	config, err := os.ReadFile(kube.Kubeconfig())
	s.must(err)
	const dir = "/run/autoresizer"
	cmd, err := n.Command(s.Context(), "sh", "-c", "mkdir -p "+dir+" && cat >"+dir+"/program && chmod 755 "+dir+"/program")
	s.must(err)
	cmd.Stdin = binary
	s.must(cmd.Run())
	cmd, err = n.Command(s.Context(), "sh", "-c", "umask 077; cat >"+dir+"/kubeconfig && d=/var/run/secrets/kubernetes.io/serviceaccount && "+
		"mkdir -p $d && printf default >$d/namespace")
	s.must(err)
	cmd.Stdin = strings.NewReader(string(config))
	s.must(cmd.Run())
	ctx, cancel := context.WithCancel(s.anyhow())
	cmd, err = n.Command(ctx, dir+"/program", "--prometheus-url="+p.URL, "--interval="+interval.String(),
		"--pvc-mutating-webhook-enabled=false", "--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0",
		"--development")
	s.must(err)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+dir+"/kubeconfig")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	s.must(cmd.Start())
	s.Cleanup(func() {
		cancel()
		cmd.Wait()
		s.on(n, "rm -r "+dir)
		s.Logf("%s:\n%s", program, out.String())
	})
}

// volumes returns the statistics of volumes by namespace/claim and the end of the metric's name.
func volumes(p promtest.Server) (map[string]map[string]float64, error) {
	all := map[string]map[string]float64{}
	for _, name := range []string{"available_bytes", "capacity_bytes", "inodes_free", "inodes"} {
		samples, err := p.Query("kubelet_volume_stats_" + name)
		if err != nil {
			return nil, err
		}
		for _, sample := range samples {
			key := sample.Metric["namespace"] + "/" + sample.Metric["persistentvolumeclaim"]
			if all[key] == nil {
				all[key] = map[string]float64{}
			}
			if all[key][name], err = strconv.ParseFloat(fmt.Sprint(sample.Value[1]), 64); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// resize is one round of the substitute, by the documentation of pvc-autoresizer: a claim of an
// annotated class grows if it has a limit, and if less than the threshold is available.
func resize(ctx context.Context, p promtest.Server) error {
	stats, err := volumes(p)
	if err != nil {
		return err
	}
	out, err := kube.Run(ctx, "get", "pvc", "-A", "-o", "json")
	if err != nil {
		return err
	}
	var claims core.PersistentVolumeClaimList
	if err := json.Unmarshal([]byte(out), &claims); err != nil {
		return err
	}
	for _, c := range claims.Items {
		v := stats[c.Namespace+"/"+c.Name]
		class, err := kube.Run(ctx, "get", "storageclass", *c.Spec.StorageClassName, "-o",
			`jsonpath={.metadata.annotations.resize\.topolvm\.io/enabled}`)
		if err != nil {
			return err
		}
		if class != "true" || len(v) != 4 || c.Annotations[limit] == "" {
			continue
		}
		if err := grow(ctx, c, v); err != nil {
			return err
		}
	}
	return nil
}

// limit is the annotation with the largest size of a claim.
const limit = "resize.topolvm.io/storage_limit"

// grow patches a claim whose volume is nearly full.
func grow(ctx context.Context, c core.PersistentVolumeClaim, stats map[string]float64) error {
	threshold, err := strconv.ParseFloat(strings.TrimSuffix(c.Annotations["resize.topolvm.io/threshold"], "%"), 64)
	if err != nil {
		return err
	}
	most, increase := resource.MustParse(c.Annotations[limit]), resource.MustParse(c.Annotations["resize.topolvm.io/increase"])
	have := c.Status.Capacity[core.ResourceStorage]
	before := strconv.FormatInt(int64(stats["capacity_bytes"]), 10)
	if have.Cmp(most) >= 0 || stats["available_bytes"] >= stats["capacity_bytes"]*threshold/100 ||
		c.Annotations["resize.topolvm.io/pre_capacity_bytes"] == before {
		return nil
	}
	size := resource.NewQuantity(int64(math.Ceil(float64(have.Value()+increase.Value())/gibi))*gibi, resource.BinarySI)
	if size.Cmp(most) > 0 {
		size = &most
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"resize.topolvm.io/pre_capacity_bytes":%q}},"spec":{"resources":`+
		`{"requests":{"storage":%q}}}}`, before, size.String())
	_, err = kube.Run(ctx, "-n", c.Namespace, "patch", "pvc", c.Name, "--type=merge", "--patch="+patch)
	return err
}
