// Package controlplane runs a Kubernetes control plane on this machine: etcd, kube-apiserver,
// kube-controller-manager and, for a cluster that has nodes, kube-scheduler as plain processes. It
// needs neither root nor a container runtime, so it also serves tests that need only a real API
// server.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/pki"
	"github.com/causeway-csi/causeway/test/cluster/process"
	"k8s.io/client-go/rest"
)

// frontProxy is the name in the certificate of the API server when it passes requests on to others.
const frontProxy = "front-proxy-client"

// patience is for how long something is waited for that a loaded machine does in seconds: a test's
// context has no end.
const patience = 2 * time.Minute

// The components' names, which are also those of their log files.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// Options describe a plane. The zero value is a plane with a controller manager that runs
// StorageControllers, on 127.0.0.1.
type Options struct {
	// Log receives the messages of builds, which takes minutes the first time. Nil is os.Stderr.
	Log io.Writer
	// Dir is where the plane's own directory is made, for its data, logs and keys. Empty is the
	// system's for temporary files. The path must be short: a socket in it has a name of at most
	// 100 bytes.
	Dir string
	// Bin is a directory that has the components. Empty is where they are built.
	Bin string
	// Launch starts the components. Nil is process.Start.
	Launch process.Launcher
	// Bind is the IP address that the API server listens on. Empty is 127.0.0.1.
	Bind string
	// Port is that of the API server. 0 means a free port, which is reserved until the plane ends.
	Port int
	// Advertise is the IP address at which pods find the API server. Empty is none.
	Advertise string
	// ServiceCIDR is the range of services' addresses. Empty is 10.96.0.0/16.
	ServiceCIDR string
	// Hosts are names and IP addresses that the API server has, beside localhost, Bind, Advertise
	// and the service's.
	Hosts []string
	// APIServerArgs come after the API server's other arguments, such as --feature-gates=... or
	// --runtime-config=...
	APIServerArgs []string
	// WithoutControllerManager leaves kube-controller-manager out.
	WithoutControllerManager bool
	// Controllers are the controllers of the controller manager, in the form of --controllers. Nil
	// is StorageControllers.
	Controllers []string
	// ControllerManagerArgs come after the controller manager's other arguments.
	ControllerManagerArgs []string
	// Scheduler runs kube-scheduler too, which only a cluster with nodes has a use for.
	Scheduler bool
}

// Plane is a control plane that runs. Its methods may be called by several goroutines at a time,
// but not those that start and stop parts of it.
type Plane struct {
	CA  *pki.Authority // signs the certificates that the API server accepts
	Dir string         // the plane's own; Close removes it
	Bin string         // the components' directory

	options Options
	host    string // where clients on this machine find the API server
	ca      pki.Files
	server  APIServer
	admin   *rest.Config
	keep    []*os.File // open as long as the ports and the directory are the plane's
	running map[string]process.Process
}

// Start builds missing components and starts a plane. When it returns, the API server is ready, the
// namespace "default" exists, and the controllers run. ctx limits the start alone; the plane runs
// until Close. An error has the end of the log of the failed component, and leaves nothing behind.
func Start(ctx context.Context, o Options) (*Plane, error) {
	o.complete()
	names := []string{etcd, apiServer, controllerManager}
	if o.WithoutControllerManager {
		names = names[:2]
	}
	if o.Scheduler {
		names = append(names, scheduler)
	}
	var err error
	bin := o.Bin
	if bin == "" {
		if bin, err = components.Build(ctx, o.Log, names...); err != nil {
			return nil, err
		}
	}
	dir, locked, err := makeDir(o.Dir)
	if err != nil {
		return nil, err
	}
	p := &Plane{Dir: dir, Bin: bin, options: o, keep: []*os.File{locked}, running: map[string]process.Process{}}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// complete sets the defaults.
func (o *Options) complete() {
	if o.Log == nil {
		o.Log = os.Stderr
	}
	if o.Launch == nil {
		o.Launch = process.Start
	}
	if o.Bind == "" {
		o.Bind = "127.0.0.1"
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = "10.96.0.0/16"
	}
	if o.Controllers == nil {
		o.Controllers = StorageControllers()
	}
}

func (p *Plane) start(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	if err := p.startEtcd(ctx); err != nil {
		return err
	}
	if err := p.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := p.awaitAnswer(ctx, apiServer, p.admin, "/api/v1/namespaces/default"); err != nil {
		return err
	}
	if p.options.Scheduler {
		if err := p.startScheduler(ctx); err != nil {
			return err
		}
	}
	if p.options.WithoutControllerManager {
		return nil
	}
	return p.startControllerManager(ctx)
}

// prepare makes the keys, chooses the API server's port, and writes the kubeconfig of the
// administrator.
func (p *Plane) prepare() error {
	p.server = APIServer{
		EtcdURL: p.etcd().URL(), Bind: p.options.Bind, Port: p.options.Port, Advertise: p.options.Advertise,
		ServiceCIDR: p.options.ServiceCIDR, Extra: p.options.APIServerArgs,
	}
	if p.server.Port == 0 {
		var err error
		if p.server.Port, err = p.port(p.server.Bind); err != nil {
			return err
		}
	}
	p.host = p.options.Bind
	if ip := net.ParseIP(p.host); ip != nil && ip.IsUnspecified() {
		p.host = "127.0.0.1"
	}
	if err := p.keys(); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	return writeKubeconfig(p.Kubeconfig(), p.admin)
}

// port reserves a free port until the plane is closed.
func (p *Plane) port(address string) (int, error) {
	port, keep, err := reserve(address)
	if err == nil {
		p.keep = append(p.keep, keep)
	}
	return port, err
}

func (p *Plane) etcd() Etcd {
	return Etcd{DataDir: filepath.Join(p.Dir, "data"), Socket: filepath.Join(p.Dir, "etcd.sock")}
}

// startEtcd starts etcd and waits until it takes connections, which is before the API server would
// begin to retry at ever longer intervals.
func (p *Plane) startEtcd(ctx context.Context) error {
	e := p.etcd()
	if len(e.Socket) > 100 {
		return fmt.Errorf("a socket cannot have a name as long as %s: choose another directory", e.Socket)
	}
	if err := p.launch(etcd, e.Args()); err != nil {
		return err
	}
	return p.await(ctx, etcd, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", e.Socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// StartAPIServer starts the API server after StopAPIServer, at the same address and with the same
// data, and waits until it is ready. After an error it does not run.
func (p *Plane) StartAPIServer(ctx context.Context) error {
	if p.running[apiServer] != nil {
		return errors.New("the API server runs")
	}
	if err := p.launch(apiServer, p.server.Args()); err != nil {
		return err
	}
	if err := p.awaitAnswer(ctx, apiServer, p.admin, "/readyz"); err != nil {
		p.kill(apiServer)
		return err
	}
	return nil
}

// StopAPIServer ends the API server, as a crash would: its clients lose their connections, and new
// connections are refused. It can be repeated.
func (p *Plane) StopAPIServer() { p.kill(apiServer) }

func (p *Plane) startControllerManager(ctx context.Context) error {
	c, err := p.controllerManager()
	if err != nil {
		return err
	}
	if err := p.launch(controllerManager, c.Args()); err != nil {
		return err
	}
	at := p.Config()
	at.Host = url(c.Bind, c.Port)
	if err := p.awaitAnswer(ctx, controllerManager, at, "/healthz"); err != nil {
		return err
	}
	if !slices.Contains(c.Controllers, serviceAccounts) && !slices.Contains(c.Controllers, "*") {
		return nil
	}
	// No pod is let into a namespace without this, and it is a sign that controllers do something.
	return p.awaitAnswer(ctx, controllerManager, p.admin, "/api/v1/namespaces/default/serviceaccounts/default")
}

// controllerManager makes the files of the controller manager.
func (p *Plane) controllerManager() (ControllerManager, error) {
	c := ControllerManager{CA: p.ca, TokenKey: p.server.TokenKey, Controllers: p.options.Controllers,
		Extra: p.options.ControllerManagerArgs}
	var err error
	c.Daemon, err = p.daemon(controllerManager)
	return c, err
}

func (p *Plane) startScheduler(ctx context.Context) error {
	d, err := p.daemon(scheduler)
	if err != nil {
		return err
	}
	if err := p.launch(scheduler, Scheduler{d}.Args()); err != nil {
		return err
	}
	at := p.Config()
	at.Host = url(d.Bind, d.Port)
	return p.awaitAnswer(ctx, scheduler, at, "/healthz")
}

// daemon makes the files of a component that is a client of the API server, and serves its health.
func (p *Plane) daemon(name string) (Daemon, error) {
	d := Daemon{Kubeconfig: filepath.Join(p.Dir, name+".kubeconfig"), Bind: "127.0.0.1"}
	err := p.WriteKubeconfig(d.Kubeconfig, "system:"+name)
	if err != nil {
		return d, err
	}
	if d.Port, err = p.port(d.Bind); err != nil {
		return d, err
	}
	d.Serving, err = p.serving(name, d.Bind)
	return d, err
}

func (p *Plane) launch(name string, args []string) error {
	started, err := p.options.Launch(process.Command{
		Name: name, Argv: append([]string{filepath.Join(p.Bin, name)}, args...), Dir: p.Dir, Log: p.LogFile(name),
	})
	if err == nil {
		p.running[name] = started
	}
	return err
}

// await calls ready until that returns nil, the component ends, or ctx or the patience does.
func (p *Plane) await(ctx context.Context, name string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.running[name].Done():
			return p.running[name].Err()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %w; the end of its log:\n%s", name, ctx.Err(), err,
				process.Tail(p.LogFile(name), 20))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitAnswer waits until a component's work can be seen: a server answers with 200 to a path.
func (p *Plane) awaitAnswer(ctx context.Context, name string, server *rest.Config, path string) error {
	client, err := rest.HTTPClientFor(server)
	if err != nil {
		return err
	}
	return p.await(ctx, name, func(ctx context.Context) error {
		_, err := get(ctx, client, server.Host+path)
		return err
	})
}

// LogFile returns the path of a component's log, such as that of kube-apiserver.
func (p *Plane) LogFile(component string) string { return filepath.Join(p.Dir, component+".log") }

// Err returns nil if all components run that were started and not stopped, and otherwise the
// component that ended, with the reason.
func (p *Plane) Err() error {
	var errs []error
	for _, r := range p.running {
		errs = append(errs, r.Err())
	}
	return errors.Join(errs...)
}

// kill ends a component, if it was started.
func (p *Plane) kill(name string) {
	if r := p.running[name]; r != nil {
		r.Kill()
		delete(p.running, name)
	}
}

// Close ends every process and removes the directory. Repeating it is fine.
func (p *Plane) Close() error {
	// clients first, so that the logs end quietly
	for _, name := range []string{scheduler, controllerManager, apiServer, etcd} {
		p.kill(name)
	}
	err := os.RemoveAll(p.Dir)
	for _, f := range p.keep {
		f.Close()
	}
	p.keep = nil
	return err
}
