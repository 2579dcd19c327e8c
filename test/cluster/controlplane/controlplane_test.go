package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// start starts a plane that ends with the test. The first start on a machine builds the components.
func start(t *testing.T, o controlplane.Options) *controlplane.Plane {
	t.Helper()
	began := time.Now()
	p, err := controlplane.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func client(t *testing.T, c *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// claim is a claim of 1 Mi of a class.
func claim(name, class string) *core.PersistentVolumeClaim {
	return &core.PersistentVolumeClaim{
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "default"},
		Spec: core.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []core.PersistentVolumeAccessMode{core.ReadWriteOnce},
			Resources:        core.VolumeResourceRequirements{Requests: core.ResourceList{core.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

// create returns a function that fails the test when an object could not be created.
func create[T any](t *testing.T) func(T, error) T {
	return func(created T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
}

func TestPlane(t *testing.T) {
	p := start(t, controlplane.Options{})
	c := client(t, p.Config())
	for _, test := range []struct {
		name string
		run  func(*testing.T, *controlplane.Plane, *kubernetes.Clientset)
	}{
		{"a claim is given to its class's provisioner", testProvisioner},
		{"a claim is bound to the volume that is for it", testBind},
		{"a user has the rights that were given", testUser},
		{"a service account has the rights that were given", testServiceAccount},
		{"kinds are there once they were applied", testCRDs},
		{"the API server's metrics can be read", testMetrics},
		{"an outage of the API server loses nothing", testOutage},
		{"a controller still acts after the outage", testProvisioner},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, p, c) })
	}
}

func testProvisioner(t *testing.T, _ *controlplane.Plane, c *kubernetes.Clientset) {
	ctx, mode := t.Context(), storage.VolumeBindingImmediate
	class := create[*storage.StorageClass](t)(c.StorageV1().StorageClasses().Create(ctx, &storage.StorageClass{
		ObjectMeta: meta.ObjectMeta{GenerateName: "unknown-"}, Provisioner: "unknown.example.com", VolumeBindingMode: &mode,
	}, meta.CreateOptions{}))
	claims := c.CoreV1().PersistentVolumeClaims("default")
	create[*core.PersistentVolumeClaim](t)(claims.Create(ctx, claim(class.Name, class.Name), meta.CreateOptions{}))
	await.NoError(t, "the claim has its provisioner", func() error {
		got, err := claims.Get(ctx, class.Name, meta.GetOptions{})
		if err == nil && got.Annotations["volume.kubernetes.io/storage-provisioner"] != "unknown.example.com" {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

func testBind(t *testing.T, _ *controlplane.Plane, c *kubernetes.Clientset) {
	ctx := t.Context()
	create[*core.PersistentVolume](t)(c.CoreV1().PersistentVolumes().Create(ctx, &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: "by-hand"},
		Spec: core.PersistentVolumeSpec{
			Capacity:    core.ResourceList{core.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce},
			ClaimRef:    &core.ObjectReference{Namespace: "default", Name: "bound"},
			PersistentVolumeSource: core.PersistentVolumeSource{
				CSI: &core.CSIPersistentVolumeSource{Driver: "unknown.example.com", VolumeHandle: "1"},
			},
		},
	}, meta.CreateOptions{}))
	claims := c.CoreV1().PersistentVolumeClaims("default")
	create[*core.PersistentVolumeClaim](t)(claims.Create(ctx, claim("bound", ""), meta.CreateOptions{}))
	await.NoError(t, "the claim is bound", func() error {
		got, err := claims.Get(ctx, "bound", meta.GetOptions{})
		if err == nil && (got.Status.Phase != core.ClaimBound || got.Spec.VolumeName != "by-hand") {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

func testUser(t *testing.T, p *controlplane.Plane, c *kubernetes.Clientset) {
	path, err := p.KubeconfigFor("jane", "readers")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	jane := client(t, config).CoreV1().PersistentVolumes()
	if _, err := jane.List(t.Context(), meta.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("list without a right: got %v, want Forbidden", err)
	}
	let(t, c, "readers", rbac.Subject{Kind: rbac.GroupKind, APIGroup: rbac.GroupName, Name: "readers"})
	await.NoError(t, "jane lists volumes", func() error {
		_, err := jane.List(t.Context(), meta.ListOptions{})
		return err
	})
	if err := jane.Delete(t.Context(), "by-hand", meta.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete without a right: got %v, want Forbidden", err)
	}
}

func testServiceAccount(t *testing.T, p *controlplane.Plane, c *kubernetes.Clientset) {
	if _, err := p.ServiceAccountConfig(t.Context(), "default", "nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("account that is not there: got %v, want NotFound", err)
	}
	path, err := p.ServiceAccountKubeconfig(t.Context(), "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	account := client(t, config).CoreV1().PersistentVolumes()
	if _, err := account.List(t.Context(), meta.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("list without a right: got %v, want Forbidden", err)
	}
	let(t, c, "account", rbac.Subject{Kind: rbac.ServiceAccountKind, Namespace: "default", Name: "default"})
	await.NoError(t, "the account lists volumes", func() error {
		_, err := account.List(t.Context(), meta.ListOptions{})
		return err
	})
}

// let gives a subject the right to list volumes.
func let(t *testing.T, c *kubernetes.Clientset, name string, to rbac.Subject) {
	t.Helper()
	create[*rbac.ClusterRole](t)(c.RbacV1().ClusterRoles().Create(t.Context(), &rbac.ClusterRole{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Rules: []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"persistentvolumes"},
			Verbs: []string{"list"}}},
	}, meta.CreateOptions{}))
	create[*rbac.ClusterRoleBinding](t)(c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: name},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbac.Subject{to},
	}, meta.CreateOptions{}))
}

// definitions is a directory as projects have it: two documents in a file, and a document that is
// no definition.
var definitions = fstest.MapFS{
	"README.md": {Data: []byte("not YAML: [")},
	"kustomization.yaml": {Data: []byte("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: " +
		"Kustomization\nresources: [kinds.yaml]\n")},
	"kinds.yaml": {Data: []byte("---\n" + definition("cats", "Cat") + "---\n" + definition("dogs", "Dog"))},
}

func definition(plural, kind string) string {
	return strings.NewReplacer("PLURAL", plural, "KIND", kind).Replace(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: PLURAL, kind: KIND}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`)
}

func testCRDs(t *testing.T, p *controlplane.Plane, _ *kubernetes.Clientset) {
	for range 2 { // repeating it is fine
		if err := p.ApplyCRDs(t.Context(), definitions); err != nil {
			t.Fatal(err)
		}
	}
	c, err := dynamic.NewForConfig(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, plural := range []string{"cats", "dogs"} {
		kind := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}
		if _, err := c.Resource(kind).List(t.Context(), meta.ListOptions{}); err != nil {
			t.Errorf("list %s: %v", plural, err)
		}
	}
	if err := p.ApplyCRDs(t.Context(),
		fstest.MapFS{"kustomization.yaml": definitions["kustomization.yaml"]}); err == nil {
		t.Error("a directory without definitions: no error")
	}
}

func testMetrics(t *testing.T, p *controlplane.Plane, _ *kubernetes.Clientset) {
	got, err := p.APIServerMetrics(t.Context())
	if err != nil || !strings.Contains(string(got), "apiserver_request_total") {
		t.Errorf("got %d bytes, %v, want apiserver_request_total among them", len(got), err)
	}
}

func testOutage(t *testing.T, p *controlplane.Plane, c *kubernetes.Clientset) {
	ctx := t.Context()
	space := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "before-the-outage"}}
	before := create[*core.Namespace](t)(c.CoreV1().Namespaces().Create(ctx, space, meta.CreateOptions{}))
	p.StopAPIServer()
	if _, err := c.CoreV1().Namespaces().Get(ctx, before.Name, meta.GetOptions{}); err == nil {
		t.Error("the API server answers after it was stopped")
	}
	if err := p.Err(); err != nil {
		t.Errorf("something ended that was not stopped: %v", err)
	}
	if err := p.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := c.CoreV1().Namespaces().Get(ctx, before.Name, meta.GetOptions{})
	if err != nil || after.UID != before.UID {
		t.Errorf("got namespace %v, %v, want the one with the UID %s", after, err, before.UID)
	}
	if err := p.StartAPIServer(ctx); err == nil {
		t.Error("the API server could be started twice")
	}
}

// recorder is a launcher that records the programs it started.
type recorder struct {
	mu      sync.Mutex
	started []process.Process
}

func (r *recorder) launch(c process.Command) (process.Process, error) {
	started, err := process.Start(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, started)
	return started, err
}

// ended fails the test for every process that runs. There must have been n.
func (r *recorder) ended(t *testing.T, n int) {
	t.Helper()
	if len(r.started) != n {
		t.Errorf("%d processes were started, want %d", len(r.started), n)
	}
	for _, s := range r.started {
		select {
		case <-s.Done():
		default:
			t.Error("a process runs")
		}
	}
}

// empty fails the test if there is anything in a directory.
func empty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("got %v, %v, want nothing", left, err)
	}
}

// shortTempDir is a test's directory whose name is not the test's, for sockets in it.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestCloseLeavesNothing(t *testing.T) {
	var r recorder
	dir := shortTempDir(t)
	p, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, Launch: r.launch})
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, p.Config())
	for range 2 { // repeating it is fine
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	r.ended(t, 3)
	empty(t, dir)
	if _, err := c.Discovery().ServerVersion(); err == nil {
		t.Error("the API server answers")
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	for _, test := range []struct {
		name    string
		options controlplane.Options
		started int
		want    string // in the error, from the component's log
	}{
		{"the API server refuses an argument", controlplane.Options{APIServerArgs: []string{"--no-such-flag"}}, 2,
			"no-such-flag"},
		{"the controller manager refuses an argument",
			controlplane.Options{ControllerManagerArgs: []string{"--no-such-flag"}}, 3, "no-such-flag"},
		{"there is no such controller", controlplane.Options{Controllers: []string{"no-such-controller"}}, 3,
			"no-such-controller"},
		{"the services' range is none", controlplane.Options{ServiceCIDR: "none"}, 0, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			test.options.Dir, test.options.Launch = shortTempDir(t), r.launch
			p, err := controlplane.Start(t.Context(), test.options)
			if err == nil {
				p.Close()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
			r.ended(t, test.started)
			empty(t, test.options.Dir)
		})
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	var r recorder
	dir := shortTempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	launch := func(c process.Command) (process.Process, error) {
		if c.Name == "kube-apiserver" {
			defer cancel()
		}
		return r.launch(c)
	}
	if _, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Launch: launch}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	r.ended(t, 2)
	empty(t, dir)
}

func TestOptionsReachTheAPIServer(t *testing.T) {
	var r recorder
	p := start(t, controlplane.Options{
		Launch:                   r.launch,
		WithoutControllerManager: true,
		APIServerArgs:            []string{"--runtime-config=coordination.k8s.io/v1beta1=true"},
	})
	if len(r.started) != 2 {
		t.Errorf("%d processes were started, want 2", len(r.started))
	}
	config := p.Config()
	config.WarningHandler = rest.NoWarnings{} // that it is beta
	c := client(t, config)
	if _, err := c.CoordinationV1beta1().LeaseCandidates("default").List(t.Context(), meta.ListOptions{}); err != nil {
		t.Errorf("a beta API that was turned on: %v", err)
	}
	v, err := c.Discovery().ServerVersion()
	if err != nil || v.Major != "1" || v.Minor != "37" || !strings.HasPrefix(v.GitVersion, "v1.37.") {
		t.Errorf("got version %v, %v, want 1.37", v, err)
	}
}

func TestPlanesBesideEachOther(t *testing.T) {
	one := start(t, controlplane.Options{WithoutControllerManager: true})
	other := start(t, controlplane.Options{WithoutControllerManager: true})
	create[*core.Namespace](t)(client(t, one.Config()).CoreV1().Namespaces().Create(t.Context(),
		&core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "one"}}, meta.CreateOptions{}))
	if _, err := client(t, other.Config()).CoreV1().Namespaces().Get(t.Context(), "one",
		meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
	if _, err := os.Stat(one.Dir); err != nil {
		t.Errorf("a plane that runs lost its directory to another's start: %v", err)
	}
}

func TestARelativeDirectory(t *testing.T) {
	t.Chdir(shortTempDir(t))
	start(t, controlplane.Options{Dir: ".", WithoutControllerManager: true})
}

func TestStartRemovesTheRemainsOfAKilledTest(t *testing.T) {
	dir := shortTempDir(t)
	left := filepath.Join(dir, "causeway-plane-1")
	if err := os.MkdirAll(filepath.Join(left, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, controlplane.Options{Dir: dir, WithoutControllerManager: true})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want none", err)
	}
}
