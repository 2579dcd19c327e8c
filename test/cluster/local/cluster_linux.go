package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/flock"
	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// diskSize is the size of a node's data disk. The file is sparse.
const diskSize = 8 << 30

// Cluster is a cluster on this machine, which may run or not. It is a provider.Provider.
type Cluster struct {
	name string
	lent bool // by the program that started it
	files
}

// LentVariable is the environment variable that lends a running cluster to programs. Its value is
// the name of the cluster.
const LentVariable = "CAUSEWAY_CLUSTER"

// New returns the cluster of that name, or the lent cluster if there is one. Up of a lent cluster
// only checks it, and Down and End leave it as it is. Errors: an invalid name.
func New(name string) (*Cluster, error) {
	lent := os.Getenv(LentVariable)
	if lent != "" {
		name = lent
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a local cluster needs root: it makes namespaces, mounts and control groups, and its " +
			"files are root's")
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &Cluster{name: name, lent: lent != "", files: files{filepath.Join(Root, name)}}, nil
}

// Lent reports whether another program has started the cluster, and will end it.
func (c *Cluster) Lent() bool { return c.lent }

// Up is provider.Provider's. The program that calls it must have called Main.
func (c *Cluster) Up(ctx context.Context, o provider.Options) error {
	if err := supported(o); err != nil {
		return err
	}
	if c.lent {
		return c.borrow(ctx, o)
	}
	if err := prereq.Install(ctx, o.Log, "cluster"); err != nil {
		return err
	}
	if !exists(c.up()) {
		// Steps that take minutes the first time come before the lock; below it their results
		// exist.
		if _, err := components.Build(ctx, o.Log, components.Names()...); err != nil {
			return err
		}
	}
	unlock, err := c.lock(ctx, o.Log)
	if err != nil {
		return err
	}
	defer unlock()
	if up, err := c.runs(ctx, o); up || err != nil {
		if up && err == nil {
			fmt.Fprintf(o.Log, "cluster %s runs already\n", c.name)
		}
		return err
	}
	if err := c.clean(); err != nil {
		return fmt.Errorf("remove what is left of a former cluster: %w", err)
	}
	if err := inotify(o.Nodes); err != nil {
		return err
	}
	bin, err := components.Build(ctx, o.Log, components.Names()...)
	if err != nil {
		return err
	}
	start := time.Now()
	err = c.start(ctx, o, bin)
	if err == nil {
		fmt.Fprintf(o.Log, "cluster %s: %d nodes, and %d that are simulated, are ready after %.1f s\n", c.name,
			o.Nodes+len(o.Guests), o.Windows, time.Since(start).Seconds())
		return nil
	}
	if ctx.Err() == nil {
		err = fmt.Errorf("%s%w", c.lastWords(), err) // the reason last: CI shows the end of a long error
	}
	if o.Keep {
		return err
	}
	return errors.Join(err, c.clean())
}

// borrow returns an error unless the lent cluster runs as requested.
func (c *Cluster) borrow(ctx context.Context, o provider.Options) error {
	up, err := c.runs(ctx, o)
	if err != nil {
		return err
	}
	if !up {
		return fmt.Errorf("%s=%s: this cluster does not run", LentVariable, c.name)
	}
	fmt.Fprintf(o.Log, "cluster %s is lent by %s\n", c.name, LentVariable)
	return nil
}

// supported returns the features that this machine lacks.
func supported(o provider.Options) error {
	switch {
	case o.Nodes < 1 || o.Nodes+len(o.Guests) > maxNodes:
		return fmt.Errorf("%d nodes and %d guests: at least one node, and %d together at most", o.Nodes, len(o.Guests),
			maxNodes)
	case o.Windows < 0:
		return fmt.Errorf("%d Windows nodes: at least 0", o.Windows)
	}
	if _, err := guestKernels(o.Guests); err != nil {
		return err
	}
	if _, err := hierarchies(); err != nil {
		return err
	}
	return nil
}

// lock keeps other processes from starting and ending local clusters, until unlock is called.
func (c *Cluster) lock(ctx context.Context, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(Root, 0o711); err != nil {
		return nil, err
	}
	// The directory stays: a process that waits for its lock waits for this directory.
	return flock.Wait(ctx, Root, func() {
		fmt.Fprintln(log,
			"cluster: waiting for another process that starts or ends one")
	})
}

// runs reports whether the cluster runs as requested. A cluster that was not started completely
// does not. Errors: it differs, or runs in part; it may hold a user's objects, so the user has to
// end it.
func (c *Cluster) runs(ctx context.Context, o provider.Options) (bool, error) {
	if !exists(c.up()) {
		return false, nil
	}
	s, err := readSpec(c.files)
	if err != nil {
		return false, fmt.Errorf("cluster %s is there, and cannot be understood: %w; end it first (down)", c.name, err)
	}
	for _, name := range append([]string{""}, names(s)...) {
		if _, err := c.init(name); err != nil {
			return false, fmt.Errorf("cluster %s is there, and %w: end it first (down)", c.name, err)
		}
	}
	guests, err := guestKernels(o.Guests)
	if err != nil {
		return false, err
	}
	windows := s.Windows == o.Windows || c.lent && s.Windows > o.Windows // they disturb no program
	if s.Nodes != o.Nodes || !windows || !slices.Equal(s.Guests, guests) {
		return false, fmt.Errorf("cluster %s runs, with %d nodes, %d for Windows and the guests %q, not %d, %d and "+
			"%q: end it first (down)", c.name, s.Nodes, s.Windows, s.Guests, o.Nodes, o.Windows, guests)
	}
	client, err := c.client()
	if err != nil {
		return false, err
	}
	return true, c.awaitNodes(ctx, client, s)
}

// up is the file whose existence means that the cluster was started completely.
func (f files) up() string { return filepath.Join(f.dir, "up") }

func (c *Cluster) start(ctx context.Context, o provider.Options, bin string) error {
	guests, err := guestKernels(o.Guests)
	if err != nil {
		return err
	}
	s := spec{Name: c.name, Bin: bin, Nodes: o.Nodes, Windows: o.Windows, Guests: guests}
	if s.Subnet, err = freeSubnet(); err != nil {
		return err
	}
	if err := c.prepare(ctx, s); err != nil {
		return err
	}
	if err := c.prepareGuests(ctx, o.Log, s); err != nil {
		return fmt.Errorf("guests: %w", err)
	}
	if err := c.spawn(c.planeLog(), planeRole, nil); err != nil {
		return err
	}
	plane, err := c.init("")
	if err != nil {
		return err
	}
	if err := c.awaitInit(ctx, "", "the plane's network",
		func() error { return inNetwork(ctx, plane.pid, "ip", "link", "show", bridge).Run() }); err != nil {
		return err
	}
	if err := c.connect(ctx, plane.pid, s); err != nil {
		return err
	}
	for _, n := range s.nodes() {
		if err := c.startNode(ctx, plane.pid, n); err != nil {
			return fmt.Errorf("start %s: %w", n.Name, err)
		}
	}
	if err := c.awaitInit(ctx, "", "the API server",
		func() error { _, err := os.Stat(c.ready()); return err }); err != nil {
		return err
	}
	if err := c.furnish(ctx, s); err != nil {
		return err
	}
	return os.WriteFile(c.up(), nil, 0o644)
}

// awaitInit waits for something that a node does, or the plane if node is empty, as long as that
// runs.
func (c *Cluster) awaitInit(ctx context.Context, node, what string, try func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	return waitFor(ctx, what, func() error {
		if _, err := c.init(node); err != nil {
			stop(err)
		}
		return try()
	})
}

// prepare writes everything that the init processes need.
func (c *Cluster) prepare(ctx context.Context, s spec) error {
	if err := makeDirs(c.dir, c.plane(), c.images()); err != nil {
		return err
	}
	// Other users must not read nodes' disks and containers' logs.
	if err := os.Chmod(c.dir, 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := copyFile(self, c.program(), 0o755); err != nil {
		return err
	}
	if err := writeSpec(c.files, s); err != nil {
		return err
	}
	if err := testimages.Build(c.images(), s.Bin); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	for _, n := range s.nodes() {
		own := c.node(n.Name)
		if err := makeDirs(own.dir); err != nil {
			return err
		}
		if err := makeDisk(ctx, own.disk(), diskSize); err != nil {
			return err
		}
	}
	return nil
}

// makeDisk makes a file with an empty filesystem that can share blocks, so that snapshots are
// quick.
func makeDisk(ctx context.Context, path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", path).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.xfs: %w: %s", err, out)
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// startNode starts a node, or starts it again, and plugs it into the bridge.
func (c *Cluster) startNode(ctx context.Context, plane int, n node) error {
	if n.guest() { // its PID files are on its own disk
		return c.startGuest(ctx, plane, n)
	}
	if err := c.node(n.Name).removePIDs(); err != nil {
		return err
	}
	if err := c.spawn(c.node(n.Name).of("init.log"), nodeRole, nil, n.Name); err != nil {
		return err
	}
	i, err := c.init(n.Name)
	if err != nil {
		return err
	}
	return plug(ctx, plane, n.port, "eth0", n.hardware, i.pid)
}

// removePIDs removes the PID files of a node's former life. Other processes may have its PIDs now.
func (f nodeFiles) removePIDs() error {
	stale, err := filepath.Glob(f.pid("*"))
	if err != nil {
		return err
	}
	for _, pid := range stale {
		if err := os.Remove(pid); err != nil {
			return err
		}
	}
	return nil
}

// connect plugs this machine into the bridge.
func (c *Cluster) connect(ctx context.Context, plane int, s spec) error {
	link := hostLink(c.name)
	if err := plug(ctx, plane, "machine", link, s.hardware(machineHost), os.Getpid()); err != nil {
		return err
	}
	return ip(ctx, "addr add "+s.address(machineHost)+"/24 dev "+link, "link set "+link+" up")
}

// command is a command to run.
type command struct{ *exec.Cmd }

// inNetwork returns a command in the network of a process, with this machine's files.
func inNetwork(ctx context.Context, pid int, argv ...string) command {
	return command{exec.CommandContext(ctx, "nsenter",
		append([]string{"--net", "-t", strconv.Itoa(pid), "--"}, argv...)...)}
}

// run runs the command.
func (c command) run() error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}

// plug makes a cable from the plane's bridge, where it is called port, to a device in the network
// of a process.
func plug(ctx context.Context, plane int, port, device, hardware string, pid int) error {
	cable := []string{"ip", "link", "add", port, "type", "veth", "peer", "name", device, "address", hardware, "netns",
		strconv.Itoa(pid)}
	if err := inNetwork(ctx, plane, cable...).run(); err != nil {
		return err
	}
	return inNetwork(ctx, plane, "ip", "link", "set", port, "master", bridge, "up").run()
}

// freeSubnet returns the first three bytes of a network that this machine has no address in.
func freeSubnet() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
next:
	for i := range 256 {
		subnet := subnetPrefix + "." + strconv.Itoa(i)
		_, network, err := net.ParseCIDR(subnet + ".0/24")
		if err != nil {
			return "", err
		}
		for _, a := range addresses {
			if at, ok := a.(*net.IPNet); ok && (network.Contains(at.IP) || at.Contains(network.IP)) {
				continue next
			}
		}
		return subnet, nil
	}
	return "", fmt.Errorf("this machine has an address in every network below %s.0.0/16", subnetPrefix)
}

// Down is provider.Provider's.
func (c *Cluster) Down(ctx context.Context) error {
	if c.lent {
		return nil
	}
	if _, err := os.Stat(Root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := c.lock(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer unlock()
	return c.clean()
}

// clean ends everything of the cluster that there is, and removes its directory last: as long as
// that is there, clean can be repeated.
func (c *Cluster) clean() error {
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := c.killAll(func(initProcess) bool { return true }); err != nil {
		return err
	}
	if err := c.detachLoops(); err != nil {
		return err
	}
	if err := removeLink(hostLink(c.name)); err != nil {
		return err
	}
	if err := removeCgroups(cgroup(c.name)); err != nil {
		return err
	}
	if err := noMounts(c.dir); err != nil {
		return err
	}
	return os.RemoveAll(c.dir)
}

// removeLink waits for a network device to go with the other end of its veth, and else removes it.
func removeLink(name string) error {
	for range 40 {
		if _, err := net.InterfaceByName(name); err != nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	err := ip(context.Background(), "link del "+name)
	if _, gone := net.InterfaceByName(name); gone != nil { // it went while that waited
		return nil
	}
	return err
}

// noMounts returns an error if this process sees something that is mounted in dir, which a removal
// would empty.
func noMounts(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			return fmt.Errorf("something is mounted at %s, which is none of the cluster's mounts: unmount it",
				fields[4])
		}
	}
	return nil
}

// lastWords returns the ends of the logs that say why a start failed.
func (c *Cluster) lastWords() string {
	var b strings.Builder
	logs := []string{c.planeLog()}
	nodes, _ := filepath.Glob(filepath.Join(c.dir, "nodes", "*"))
	for _, n := range nodes {
		own := nodeFiles{n}
		logs = append(logs, own.of("init.log"), own.log("console"), own.log("containerd"), own.log("kubelet"))
	}
	for _, l := range logs {
		if _, err := os.Stat(l); err == nil {
			fmt.Fprintf(&b, "the end of %s:\n%s\n", strings.TrimPrefix(l, c.dir+"/"), tail(l))
		}
	}
	return b.String()
}
