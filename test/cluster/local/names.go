// Package local runs a Kubernetes cluster on this machine, from programs that are built from their
// modules: no image registry, no container engine, and virtual machines only for nodes that are to
// have a kernel of their own.
//
// A node is the namespaces (mount, PID, network, UTS, IPC) of one init process, which is this
// program; the control plane is another's. The end of an init ends everything in its namespaces,
// mounts and network devices included. The plane's network has a bridge that connects the nodes
// and, by one more veth, this machine:
//
//	this machine ── veth ──┐                      ┌── veth ── eth0 of node-1 ── pods 10.244.1.0/24
//	                       bridge in the plane's network: etcd, API server, controllers
//	                                              └── veth ── eth0 of node-2 ── pods 10.244.2.0/24
//
// A node can also be a guest of QEMU, with a kernel of its own. Its init process has the emulator
// as a child, and a tap device instead of the veth.
//
// So there is nothing in this machine's own network but that veth, which goes with the plane. A
// node sees this machine's programs and settings, read-only, its devices, and of its disks a
// directory of its own.
package local

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Root is the directory of all local clusters. It is on a disk, as containerd cannot put its layers
// on every filesystem of /tmp.
const Root = "/var/lib/causeway-cluster"

// nameGrammar keeps names good for cgroups, file names and the rest.
var nameGrammar = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$`)

// The cluster's addresses. Those of nodes begin with the subnet of the cluster.
const (
	services     = "10.96.0.0/16"
	dnsAddress   = "10.96.0.10"
	pods         = "10.244.0.0/16"
	planeHost    = 1   // the last byte of the plane's address, which is every node's gateway
	firstNode    = 10  // of node 0, which does not exist
	machineHost  = 254 // of this machine's
	apiPort      = 6443
	maxNodes     = 50
	bridge       = "nodes" // the plane's bridge
	subnetPrefix = "10.99"
)

// spec is the configuration with which a cluster was started, in the file spec.json.
type spec struct {
	Name    string
	Subnet  string // of nodes, such as 10.99.0
	Bin     string // the components' directory
	Nodes   int
	Windows int
	Guests  []string // packages with the kernels of the nodes that are guests
}

// address returns an address of the nodes' network.
func (s spec) address(host int) string { return s.Subnet + "." + strconv.Itoa(host) }

// hardware returns the hardware address for an address of the nodes' network. It stays the same
// over a node's reboot, as that of real hardware. The address of the bridge has to be set, too: by
// default it is the lowest of its ports', and when the node of that port is switched off, no node
// finds the plane for the half minute that ARP remembers (ip-link(8); addr_assign_type in sysfs).
func (s spec) hardware(host int) string { return fmt.Sprintf("02:00:00:00:00:%02x", host) }

// node returns the i-th node, from 1.
func (s spec) node(i int) node {
	return node{
		Name: "node-" + strconv.Itoa(i), Address: s.address(firstNode + i), Pods: fmt.Sprintf("10.244.%d.0/24", i),
		port: "port-" + strconv.Itoa(i), hardware: s.hardware(firstNode + i),
	}
}

// nodes returns the ordinary nodes, then the guests.
func (s spec) nodes() []node {
	all := make([]node, s.Nodes+len(s.Guests))
	for i := range all {
		all[i] = s.node(i + 1)
		if i >= s.Nodes {
			all[i].Name, all[i].kernel = "guest-"+strconv.Itoa(i-s.Nodes+1), s.Guests[i-s.Nodes]
		}
	}
	return all
}

// find returns the node of that name.
func (s spec) find(name string) (node, error) {
	var all []string
	for _, n := range s.nodes() {
		if n.Name == name {
			return n, nil
		}
		all = append(all, n.Name)
	}
	return node{}, fmt.Errorf("there is no node %q: they are %s", name, strings.Join(all, ", "))
}

// node is a node of a cluster.
type node struct {
	Name    string
	Address string
	Pods    string // the range of its pods' addresses
	port    string // its end of the bridge, in the plane's network

	hardware string // the hardware address of the other end
	kernel   string // of a guest: the package that has its kernel
}

// guest reports whether the node is a guest of QEMU.
func (n node) guest() bool { return n.kernel != "" }

// GuestType is the value of the label node.kubernetes.io/instance-type of guests.
const GuestType = "qemu"

// files has the paths of a cluster's files.
type files struct{ dir string }

func (f files) program() string            { return filepath.Join(f.dir, "cluster") }
func (f files) spec() string               { return filepath.Join(f.dir, "spec.json") }
func (f files) kubeconfig() string         { return filepath.Join(f.dir, "admin.kubeconfig") }
func (f files) plane() string              { return filepath.Join(f.dir, "plane") }
func (f files) images() string             { return filepath.Join(f.dir, "images") }
func (f files) node(name string) nodeFiles { return nodeFiles{filepath.Join(f.dir, "nodes", name)} }
func (f files) ready() string              { return filepath.Join(f.plane(), "ready") }
func (f files) planeLog() string           { return filepath.Join(f.plane(), "init.log") }

// nodeFiles has the paths of a node's files. A node sees only this directory and the images of the
// cluster's files.
type nodeFiles struct{ dir string }

func (f nodeFiles) of(name string) string   { return filepath.Join(f.dir, name) }
func (f nodeFiles) log(name string) string  { return filepath.Join(f.dir, "log", name+".log") }
func (f nodeFiles) pid(name string) string  { return filepath.Join(f.dir, name+".pid") }
func (f nodeFiles) held(name string) string { return filepath.Join(f.dir, name+".held") }
func (f nodeFiles) disk() string {
	return filepath.Join(f.dir, diskName(filepath.Dir(filepath.Dir(f.dir))))
}
func (f nodeFiles) noDisk() string { return filepath.Join(f.dir, "no-disk") }

// diskName is that of the data disks of the cluster in a directory. It says whose they are: where
// such a file is deleted while a loop device has it, the name is all that the kernel tells.
func diskName(cluster string) string { return "disk-of-" + filepath.Base(cluster) + ".img" }

// cgroup is the name of the group that all of a cluster's groups are below, in each hierarchy.
func cgroup(name string) string { return "causeway-" + name }

// hostLinkPrefix is that of network devices.
const hostLinkPrefix = "cw-"

// hostLink is the name of the network device that connects this machine: at most 15 bytes.
func hostLink(name string) string {
	return fmt.Sprintf(hostLinkPrefix+"%.4x", sha256.Sum256([]byte(name)))
}

func checkName(name string) error {
	if !nameGrammar.MatchString(name) {
		return errors.New("a cluster's name is at most 32 lower-case letters, digits and hyphens, a letter first: " +
			"not " + strconv.Quote(name))
	}
	return nil
}
