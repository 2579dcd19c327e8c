package works

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// setup has the settings of a process.
type setup struct {
	name        string                                       // the driver's is made of it, and the namespace's
	driver      rig.DriverOptions                            // without its name
	hook        func(ctx context.Context, c *rig.Call) error // the driver's
	controllers string
	args        []string
	rights      []string // the driver's capabilities for rbac
	env         []string
	zones       []string // each with a node, of which the first is the node to which volumes can be attached
	command     []string // all arguments instead of the usual arguments; $SOCKET is the driver's, $DIR its directory
	namespace   string   // where the service account is: that of name if it is empty
}

// sidecars is a process of csi-sidecars with its driver.
type sidecars struct {
	*rig.Process
	driver    *rig.Driver
	namespace string
	user      string // as the API server calls it
	url       string // of its port
	told      atomic.Bool
}

// account is the service account's name in every namespace.
const account = "csi-sidecars"

// node is where the drivers' volumes can be attached, by the driver's name for it.
const node = "node-1"

// start starts a driver, and csi-sidecars beside it with the rights of a service account of its
// own. Every process panics if a function writes to an object of an informer.
func start(ctx context.Context, o setup) (*sidecars, error) {
	dir := filepath.Join(world.dir, o.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	o.driver.Name = driverOf(o.name)
	o.driver.Nodes = []string{node}
	driver, err := rig.NewDriver(dir, o.driver)
	if err != nil {
		return nil, err
	}
	driver.Hook(o.hook)
	s := &sidecars{driver: driver, namespace: o.namespace}
	if s.namespace == "" {
		s.namespace = "sidecars-" + o.name
	}
	s.user = "system:serviceaccount:" + s.namespace + ":" + account
	args, err := o.arguments(s)
	if err != nil {
		return nil, errors.Join(err, driver.Stop())
	}
	if err := o.makeZones(ctx); err != nil {
		return nil, errors.Join(err, driver.Stop())
	}
	kubeconfig, err := credentials(ctx, s.namespace, append(o.rights, args...))
	if err != nil {
		return nil, errors.Join(err, driver.Stop())
	}
	env := append([]string{"KUBECONFIG=" + kubeconfig, "KUBE_CACHE_MUTATION_DETECTOR=true", "NAMESPACE=" + s.namespace,
		"POD_NAMESPACE=" + s.namespace}, o.env...)
	s.Process, err = rig.StartProcess(world.binary, env, args...)
	if err != nil {
		return nil, errors.Join(err, driver.Stop())
	}
	go s.watch()
	return s, nil
}

// driverOf is the name of a process's driver.
func driverOf(process string) string { return process + ".csi.example" }

func (o setup) makeZones(ctx context.Context) error {
	for i, zone := range o.zones {
		if err := makeZone(ctx, o.driver.Name, zone, fmt.Sprintf("node-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// watch ends all waiting when the process dies.
func (s *sidecars) watch() {
	<-s.Ended()
	if !s.told.Load() {
		world.died(fmt.Errorf("csi-sidecars for %s died", s.driver.Name))
	}
}

// arguments are those of the process. It retries soon, as tests wait for it.
func (o setup) arguments(s *sidecars) ([]string, error) {
	if o.command != nil {
		var args []string
		for _, arg := range o.command {
			args = append(args, strings.NewReplacer("$SOCKET", s.driver.Socket, "$DIR",
				filepath.Dir(s.driver.Socket)).Replace(arg))
		}
		return args, nil
	}
	address, err := freeport.Address()
	s.url = "http://" + address
	return append([]string{
		"--csi-address=" + s.driver.Socket, "--controllers=" + o.controllers, "--http-endpoint=" + address,
		"--kube-api-qps=100", "--kube-api-burst=200", "--retry-interval-start=100ms", "--shutdown-timeout=1s", "--v=3",
	}, o.args...), err
}

// credentials makes the namespace and its service account, grants the rights that csi-sidecars
// prints, and returns the kubeconfig.
func credentials(ctx context.Context, namespace string, args []string) (string, error) {
	_, err := world.Kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	_, err = world.Kube.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if err := grant(ctx, append([]string{"rbac", "--name=" + namespace, "--namespace=" + namespace},
		args...)); err != nil {
		return "", err
	}
	return world.ServiceAccountKubeconfig(ctx, namespace, account)
}

// forbidden is a line about something that the API server has refused.
var forbidden = regexp.MustCompile(`.* is forbidden: User .*`)

// stop ends the process and its driver. An error has the log.
func (s *sidecars) stop() error {
	s.told.Store(true)
	code := s.Stop()
	err := s.driver.Stop()
	if refused := forbidden.FindString(s.Log()); refused != "" {
		err = errors.Join(err, fmt.Errorf("a right is missing in what rbac prints for %s: %s", s.driver.Name, refused))
	}
	if code != 0 {
		err = errors.Join(err, fmt.Errorf("csi-sidecars for %s ended with code %d, not 0; its log ends\n%s",
			s.driver.Name, code, end(s.Log())))
	}
	return err
}

// launch starts a process for a test; the process must end without an error at the end of the test.
func launch(t *testing.T, o setup) *sidecars {
	t.Helper()
	s, err := start(await.Context(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	showLog(t, s)
	return s
}

// showLog shows the log of the process if the test fails.
func showLog(t *testing.T, s *sidecars) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of csi-sidecars for %s ends:\n%s", s.driver.Name, end(s.Log()))
		}
	})
}

// end is the part of a log that a failed test shows.
func end(log string) string {
	const most = 12 << 10
	if len(log) > most {
		return "…" + log[len(log)-most:]
	}
	return log
}

// get asks the process's port once it answers at all.
func (s *sidecars) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	until(t, path+" answers", func(ctx context.Context) (err error) {
		code, body, err = rig.Get(ctx, s.url+path)
		return err
	})
	return code, body
}

// until waits for an event. It fails at once when a process of csi-sidecars has died.
func until(t *testing.T, event string, try func(context.Context) error) {
	t.Helper()
	ctx := await.Context(t)
	await.NoError(t, event, func() error {
		err := try(ctx)
		if err != nil && world.alive.Err() != nil {
			t.Fatalf("waiting until %s: %v", event, errors.Join(context.Cause(world.alive), err))
		}
		return err
	})
}
