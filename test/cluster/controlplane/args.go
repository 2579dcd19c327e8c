package controlplane

import (
	"net"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/pki"
)

// Etcd describes an etcd: alone, with its files in a directory, and without a network.
type Etcd struct {
	DataDir string
	Socket  string // where clients connect to; only who may write to its directory can
}

// URL is where clients find etcd.
func (e Etcd) URL() string { return "unix://" + e.Socket }

// Args returns etcd's arguments. Args never syncs: a test's data need not outlive the machine's
// power. No process uses the addresses that it advertises, but etcd requires plausible addresses.
// The socket for its peers is in its working directory.
func (e Etcd) Args() []string {
	return []string{
		"--data-dir=" + e.DataDir,
		"--listen-client-urls=" + e.URL(),
		"--advertise-client-urls=http://localhost:0",
		"--listen-peer-urls=unix://peer.sock",
		"--initial-advertise-peer-urls=http://localhost:1",
		"--initial-cluster=default=http://localhost:1",
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

// APIServer describes how kube-apiserver is to run.
type APIServer struct {
	EtcdURL     string
	Bind        string // the IP address that it listens on
	Advertise   string // its address for pods, in the endpoints of the service "kubernetes"; none if it is empty
	Port        int
	ServiceCIDR string
	CA          string    // the authority's certificate
	Serving     pki.Files // for clients
	FrontProxy  pki.Files // for aggregated API servers
	Kubelets    pki.Files // for kubelets
	TokenKey    string    // signs service accounts' tokens
	Extra       []string  // arguments that come last, and so win
}

// Args returns kube-apiserver's arguments.
func (a APIServer) Args() []string {
	args := []string{
		"--etcd-servers=" + a.EtcdURL,
		"--bind-address=" + a.Bind,
		"--secure-port=" + strconv.Itoa(a.Port),
		"--permit-port-sharing", // with the socket that keeps the port
		"--service-cluster-ip-range=" + a.ServiceCIDR,
		"--tls-cert-file=" + a.Serving.Cert,
		"--tls-private-key-file=" + a.Serving.Key,
		"--client-ca-file=" + a.CA,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + a.TokenKey,
		"--service-account-signing-key-file=" + a.TokenKey,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--requestheader-client-ca-file=" + a.CA,
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + a.FrontProxy.Cert,
		"--proxy-client-key-file=" + a.FrontProxy.Key,
		"--kubelet-certificate-authority=" + a.CA,
		"--kubelet-client-certificate=" + a.Kubelets.Cert,
		"--kubelet-client-key=" + a.Kubelets.Key,
		"--kubelet-preferred-address-types=InternalIP",
		"--profiling=false",
	}
	return append(append(args, a.endpoint()...), a.Extra...)
}

// endpoint returns the arguments about the service "kubernetes". Kubernetes rejects a loopback
// address as its endpoint, and without pods the endpoint is unused.
func (a APIServer) endpoint() []string {
	if a.Advertise == "" {
		return []string{"--endpoint-reconciler-type=none", "--advertise-address=127.0.0.1"}
	}
	return []string{"--advertise-address=" + a.Advertise}
}

// Daemon describes how a component is to run that is a client of the API server.
type Daemon struct {
	Kubeconfig string
	Bind       string // the IP address that it serves its health on
	Port       int
	Serving    pki.Files
}

// args returns the common arguments of such components.
func (d Daemon) args() []string {
	return []string{
		"--kubeconfig=" + d.Kubeconfig,
		"--authentication-kubeconfig=" + d.Kubeconfig,
		"--authorization-kubeconfig=" + d.Kubeconfig,
		"--bind-address=" + d.Bind,
		"--secure-port=" + strconv.Itoa(d.Port),
		"--permit-port-sharing",
		"--tls-cert-file=" + d.Serving.Cert,
		"--tls-private-key-file=" + d.Serving.Key,
		"--leader-elect=false",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	}
}

// Scheduler describes how kube-scheduler is to run.
type Scheduler struct{ Daemon }

// Args returns kube-scheduler's arguments.
func (s Scheduler) Args() []string { return s.args() }

// ControllerManager describes how kube-controller-manager is to run.
type ControllerManager struct {
	Daemon
	CA          pki.Files
	TokenKey    string
	Controllers []string // as --controllers takes them
	Extra       []string // arguments that come last, and so win
}

// Args returns kube-controller-manager's arguments. It acts sooner than usual: a test waits for it.
func (c ControllerManager) Args() []string {
	return append(append(c.args(),
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.TokenKey,
		"--root-ca-file="+c.CA.Cert,
		"--cluster-signing-cert-file="+c.CA.Cert,
		"--cluster-signing-key-file="+c.CA.Key,
		"--controllers="+strings.Join(c.Controllers, ","),
		"--pvclaimbinder-sync-period=2s",
		"--attach-detach-reconcile-sync-period=10s",
	), c.Extra...)
}

// serviceAccounts is the controller that makes each namespace's service account "default".
const serviceAccounts = "serviceaccount-controller"

// StorageControllers are those of kube-controller-manager's that volumes need, and the few that
// nothing works without.
func StorageControllers() []string {
	return []string{
		"persistentvolume-binder-controller",
		"persistentvolume-expander-controller",
		"persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller",
		"volumeattributesclass-protection-controller",
		"ephemeral-volume-controller",
		"garbage-collector-controller",
		"namespace-controller",
		serviceAccounts,
	}
}

// url is the address of a server at a port.
func url(host string, port int) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}
