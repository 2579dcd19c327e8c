package kube

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	attacher "github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	resizer "github.com/kubernetes-csi/external-resizer/v2/pkg/util"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// managed is an object's metadata as an API server gives it.
func managed(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: "uid-1", ResourceVersion: "7", Generation: 3,
		Labels: map[string]string{"topology.kubernetes.io/zone": "north"},
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("long ",
			100)},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "helm", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:volumes":{}}}`),
		}},
	}
}

// bigPod is a pod with every kind of volume that matters, and much that does not.
func bigPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: managed("shop", "till-0"),
		Spec: corev1.PodSpec{
			NodeName: "node-1",
			Containers: []corev1.Container{{Name: "till", Image: "till:1",
				Env: []corev1.EnvVar{{Name: "A", Value: "B"}}}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "till", ReadOnly: true}}},
				{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			ContainerStatuses: []corev1.ContainerStatus{{Name: "till"}}},
	}
}

func bigNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: managed("", "node-1"),
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"till:1"}}}},
	}
}

func TestSlimKeepsTheFieldsThatControllersRead(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: managed("shop", "till"),
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"}}
	bare := claim.DeepCopy()
	bare.ManagedFields = nil
	tests := map[string]struct{ in, want any }{
		"a pod keeps its name, node, phase and claims": {bigPod(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till-0", UID: "uid-1", ResourceVersion: "7"},
			Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "till"}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}},
		"a pod without claims keeps no volumes": {
			&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "tmp"}}}},
			&corev1.Pod{},
		},
		"a node keeps its name and labels": {bigNode(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", UID: "uid-1", ResourceVersion: "7", Labels: map[string]string{"topology.kubernetes.io/zone": "north"},
		}}},
		"anything else loses its managedFields only": {claim.DeepCopy(), bare},
		"so does a type nobody compiled in": {
			&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a",
				"managedFields": []any{map[string]any{"manager": "b"}}}, "spec": "c"}},
			&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "spec": "c"}},
		},
		"a tombstone stays as it is": {cache.DeletedFinalStateUnknown{Key: "shop/till", Obj: bare},
			cache.DeletedFinalStateUnknown{Key: "shop/till", Obj: bare}},
		"so does an empty tombstone": {cache.DeletedFinalStateUnknown{Key: "shop/till"},
			cache.DeletedFinalStateUnknown{Key: "shop/till"}},
		"what has no metadata passes":               {"text", "text"},
		"nothing at all, which has none, passes":    {nil, nil},
		"a status, whose metadata is a list's, too": {&metav1.Status{Message: "gone"}, &metav1.Status{Message: "gone"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := slim(tt.in)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
			again, err := slim(got)
			if err != nil || !reflect.DeepEqual(again, tt.want) {
				t.Errorf("again: got %+v, %v, want %+v", again, err, tt.want)
			}
		})
	}
}

// TestSlimWritesToNothingThatOthersRead: the race detector would report a write to an object that
// the other goroutine reads.
func TestSlimWritesToNothingThatOthersRead(t *testing.T) {
	claim, err := slim(&corev1.PersistentVolumeClaim{ObjectMeta: managed("shop", "till")})
	if err != nil {
		t.Fatal(err)
	}
	full := &corev1.PersistentVolume{ObjectMeta: managed("", "pv-1")} // the objects that a controller itself put into a cache
	for name, obj := range map[string]any{
		"a pod": bigPod(), "a node": bigNode(), "what was slim already": claim,
		"a tombstone": cache.DeletedFinalStateUnknown{Key: "pv-1", Obj: full},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			read := make(chan []byte)
			go func() {
				during, _ := json.Marshal(obj)
				read <- during
			}()
			if _, err := slim(obj); err != nil {
				t.Fatal(err)
			}
			if during := <-read; string(during) != string(before) {
				t.Errorf("it was %s and became %s", before, during)
			}
			if after, _ := json.Marshal(obj); string(after) != string(before) {
				t.Errorf("it was %s and is %s", before, after)
			}
		})
	}
}

func TestSlimAllocatesLittle(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: managed("shop", "till")}
	for name, tt := range map[string]struct {
		obj  any
		most float64
	}{
		"a pod is itself, its volumes, and one more for each claim": {bigPod(), 4},
		"a node is itself":                  {bigNode(), 1},
		"anything else is left where it is": {claim, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testing.AllocsPerRun(100, func() { _, _ = slim(tt.obj) }); got > tt.most {
				t.Errorf("%v allocations, over %v", got, tt.most)
			}
		})
	}
}

func BenchmarkSlimPod(b *testing.B) {
	pod := bigPod()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := slim(pod); err != nil {
			b.Fatal(err)
		}
	}
}

// cached is obj as the informer's store returns it, of a cluster that has nothing else.
func cached[T runtime.Object](t *testing.T, obj T,
	informer func(informers.SharedInformerFactory) cache.SharedIndexInformer) (T, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(obj)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	store := informer(factory).GetStore()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	all := store.List()
	if len(all) != 1 {
		t.Fatalf("the cache has %v, want one object", all)
	}
	client.ClearActions()
	return all[0].(T), client
}

// TestPatchesOfSlimObjectsLeaveManagedFieldsAlone runs upstream's own code where it can be called.
// A patch that named them would remove the entries of all other managers. JSON patches, which list
// the paths that they change, are not tested here.
func TestPatchesOfSlimObjectsLeaveManagedFieldsAlone(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: managed("", "pv-1"),
		Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")}}}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: managed("shop", "till")}
	va := &storagev1.VolumeAttachment{ObjectMeta: managed("", "va-1"),
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "driver", NodeName: "node-1"}}
	volumes := func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().PersistentVolumes().Informer()
	}
	tests := map[string]func(t *testing.T) *fake.Clientset{
		"the attacher's merge patch of an attachment": func(t *testing.T) *fake.Clientset {
			old, client := cached(t, va, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
				return f.Storage().V1().VolumeAttachments().Informer()
			})
			h := attacher.NewTrivialHandler(client)
			h.Init(queue(t), queue(t))
			h.SyncNewOrUpdatedVolumeAttachment(t.Context(), old)
			return client
		},
		"the resizer's strategic patch of a claim": func(t *testing.T) *fake.Clientset {
			old, client := cached(t, pvc, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
				return f.Core().V1().PersistentVolumeClaims().Informer()
			})
			changed := old.DeepCopy()
			changed.Status.Phase = corev1.ClaimBound
			if _, err := resizer.PatchClaim(client, old, changed, true); err != nil {
				t.Fatal(err)
			}
			return client
		},
		"the resizer's strategic patch of a volume": func(t *testing.T) *fake.Clientset {
			old, client := cached(t, pv, volumes)
			changed := old.DeepCopy()
			changed.Spec.Capacity["storage"] = resource.MustParse("2Gi")
			if _, err := resizer.PatchPersistentVolume(client, old, changed); err != nil {
				t.Fatal(err)
			}
			return client
		},
		"the provisioner library's strategic patch of finalizers": func(t *testing.T) *fake.Clientset {
			old, client := cached(t, pv, volumes)
			changed := old.DeepCopy()
			changed.Finalizers = []string{"external-provisioner.volume.kubernetes.io/finalizer"}
			strategic(t, client, old, changed)
			return client
		},
	}
	for name, patch := range tests {
		t.Run(name, func(t *testing.T) {
			patches := 0
			for _, a := range patch(t).Actions() {
				p, ok := a.(interface{ GetPatch() []byte })
				if !ok {
					continue
				}
				patches++
				if strings.Contains(string(p.GetPatch()), "managedFields") ||
					!strings.Contains(string(p.GetPatch()), ":") {
					t.Errorf("got the patch %s, want one that changes something and no managedFields", p.GetPatch())
				}
			}
			if patches == 0 {
				t.Error("nothing was patched")
			}
		})
	}
}

func queue(t *testing.T) workqueue.TypedRateLimitingInterface[string] {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	t.Cleanup(q.ShutDown)
	return q
}

// strategic patches old into changed in the way of the provisioner library, which keeps its
// function to itself.
func strategic(t *testing.T, client kubernetes.Interface, old, changed *corev1.PersistentVolume) {
	t.Helper()
	before, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	after, err := json.Marshal(changed)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, &corev1.PersistentVolume{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().PersistentVolumes().Patch(t.Context(), old.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// sent is the body of the only request that do makes of an API server which returns the request's
// body.
func sent(t *testing.T, contentType string, do func(context.Context, *kubernetes.Clientset) error) string {
	t.Helper()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = w.Write(body)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: contentType}})
	if err != nil {
		t.Fatal(err)
	}
	if err := do(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestUpdatesOfSlimObjectsSendNoManagedFields: an empty list would reset them on the server, an
// absent list leaves them alone.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
func TestUpdatesOfSlimObjectsSendNoManagedFields(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(contentType, func(t *testing.T) {
			update := func(claim any) string {
				return sent(t, contentType, func(ctx context.Context, c *kubernetes.Clientset) error {
					_, err := c.CoreV1().PersistentVolumeClaims("shop").Update(ctx,
						claim.(*corev1.PersistentVolumeClaim), metav1.UpdateOptions{})
					return err
				})
			}
			full := &corev1.PersistentVolumeClaim{ObjectMeta: managed("shop", "till")}
			if got := update(full); !strings.Contains(got, "helm") {
				t.Fatalf("a full object was sent without managedFields, so this test proves nothing: %q", got)
			}
			kept, err := slim(full)
			if err != nil {
				t.Fatal(err)
			}
			got := update(kept)
			if strings.Contains(got, "helm") || strings.Contains(got, "managedFields") ||
				!strings.Contains(got, "till") {
				t.Errorf("got %q, want the claim without managedFields", got)
			}
		})
	}
}
