package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/probe"
)

// pageConditions has hostpath.node.nodeSelector and kubeletDir.
const pageConditions = "docs/how-to/install.md#settings-with-conditions"

// perNode returns the findings of nodes. Equal findings of several nodes become one.
func perNode(v *cluster.View, check func(n *corev1.Node) []Finding) (all []Finding) {
	var names [][]string
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if cluster.Virtual(n) {
			continue
		}
		for _, f := range check(n) {
			f.Object = ""
			k := slices.Index(all, f)
			if k < 0 {
				k = len(all)
				all, names = append(all, f), append(names, nil)
			}
			names[k] = append(names[k], "Node/"+n.Name)
		}
	}
	for k := range all {
		all[k].Object = firstFew(names[k], 5)
	}
	return all
}

// runsDriver reports whether the DaemonSet of Linux nodes gives the node a pod.
func runsDriver(n *corev1.Node) bool {
	i := n.Status.NodeInfo
	return i.OperatingSystem == "linux" && slices.Contains(architectures[i.OperatingSystem], i.Architecture) &&
		!cluster.Virtual(n)
}

// architectures are those of the images.
var architectures = map[string][]string{"linux": {"amd64", "arm64"}, "windows": {"amd64"}}

// leaveOut is the remedy of a node that cannot run the driver.
const leaveOut = "leave the node out by hostpath.node.nodeSelector and --node-selector"

// nodeState finds nodes that are not ready, and a selector that selects no node: all other checks
// of nodes would pass.
func (b before) nodeState(v *cluster.View) []Finding {
	if b.withLabels() != "" && !slices.ContainsFunc(v.Nodes, func(n corev1.Node) bool { return !cluster.Virtual(&n) }) {
		return []Finding{{Severity: Error, Object: "nodes", Cause: "the node selector selects no node: the driver " +
			"would run nowhere",
			Evidence: "the API server lists no node" + b.withLabels() + " that is not a virtual kubelet",
			Remedy:   "kubectl label node NAME KEY=VALUE, or correct --node-selector and hostpath.node.nodeSelector",
			Page:     pageConditions}}
	}
	return perNode(v, func(n *corev1.Node) (all []Finding) {
		if !cluster.NodeReady(n) {
			f := Finding{Severity: Warning, Cause: "the node is not ready", Evidence: "no condition Ready=True",
				Remedy: "bring the node back, or delete it", Page: pageFailures}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					f.Evidence = fmt.Sprintf("Ready: %s: %s", c.Status, c.Message)
				}
			}
			all = append(all, f)
		}
		for _, t := range n.Spec.Taints {
			all = append(all, Finding{Severity: Note, Cause: "has the taint " + t.ToString() + ", which the pods " +
				"of the DaemonSet tolerate", Page: pageRequires})
		}
		return all
	})
}

var kernelVersion = regexp.MustCompile(`^\d+\.\d+`)

func (b before) nodeKernel(v *cluster.View) []Finding {
	oldest, purpose := "5.8", ""
	if b.SMB {
		oldest, purpose = "5.11", " for shares"
	}
	return perNode(v, func(n *corev1.Node) []Finding {
		i := n.Status.NodeInfo
		if i.OperatingSystem != "linux" || !olderThan(kernelVersion.FindString(i.KernelVersion), oldest) {
			return nil
		}
		return []Finding{{Severity: Error, Cause: "the kernel is too old for the driver", Evidence: "kernel " +
			i.KernelVersion, Remedy: fmt.Sprintf("upgrade it to Linux %s or newer%s, or %s", oldest, purpose,
			leaveOut), Page: pageRequires}}
	})
}

func (b before) nodePlatform(v *cluster.View) []Finding {
	return perNode(v, func(n *corev1.Node) (all []Finding) {
		i := n.Status.NodeInfo
		if !slices.Contains(architectures[i.OperatingSystem], i.Architecture) {
			all = append(all, Finding{Severity: Warning, Cause: "there are no images for this platform: the node " +
				"gets no driver", Evidence: i.OperatingSystem + "/" + i.Architecture,
				Remedy: "place no pods with volumes on the node", Page: pageRequires})
		}
		if kubelet := i.KubeletVersion; olderThan(kubelet, oldestServer) {
			all = append(all, Finding{Severity: Error, Cause: "the kubelet is too old for the driver",
				Evidence: "kubelet " + kubelet, Remedy: "upgrade the kubelet to 1.31 or newer", Page: pageVersions})
		}
		containerd, ok := strings.CutPrefix(i.ContainerRuntimeVersion, "containerd://")
		if i.OperatingSystem == "windows" && (!ok || olderThan(containerd, "1.7.0")) {
			all = append(all, Finding{Severity: Warning, Evidence: i.ContainerRuntimeVersion,
				Cause:  "the container runtime of the Windows node is too old for HostProcess pods",
				Remedy: "upgrade it to containerd 1.7 or newer, or leave out hostpath.windows and smb.windows",
				Page:   "docs/how-to/windows.md"})
		}
		return all
	})
}

// facts runs a check over the nodes whose facts are known.
func facts(v *cluster.View, check func(f probe.Facts) []Finding) []Finding {
	return perNode(v, func(n *corev1.Node) []Finding {
		f, ok := v.Before.Facts[n.Name]
		if !ok {
			return nil
		}
		return check(f)
	})
}

func (b before) nodeRoot(v *cluster.View) []Finding {
	return facts(v, func(f probe.Facts) []Finding {
		one := func(s Severity, cause, evidence, remedy, page string) []Finding {
			return []Finding{{Severity: s, Cause: cause, Evidence: evidence, Remedy: remedy, Page: page}}
		}
		switch f.Root {
		case probe.Absent:
			return one(Error, "the directory of the volumes is missing", b.Root+" does not exist", "mount the disk of "+
				"the node there, or "+leaveOut+"; only if it was never on a disk of its own, mkdir -p "+b.Root,
				pageDirectory)
		case probe.Other:
			return one(Error, "the path of the volumes is no directory", b.Root+" is a file, or a component of it is",
				"remove the file, or choose another hostpath.root", pageDirectory)
		case probe.Directory:
		default:
			return nil // not checked
		}
		all := b.filesystem(f)
		switch f.Content {
		case probe.Foreign:
			m := messageOf("The driver is not ready: `has no identity.json and is not empty`")
			all = append(all, one(Error, m.cause, b.Root+" is not empty, and has no identity.json", m.remedy,
				m.page)...)
		case probe.Served:
			of := "an earlier installation"
			if len(v.Drivers) > 0 {
				of = "this or an earlier installation"
			}
			all = append(all, one(Note, b.Root+" has the volumes of "+of+", which a driver of the same name serves "+
				"again", "", "", "docs/how-to/install.md#uninstall-and-keep-the-data")...)
		default: // empty, or not checked
		}
		return all
	})
}

// filesystem judges the filesystem of the root.
func (b before) filesystem(f probe.Facts) (all []Finding) {
	note := func(cause, page string) {
		all = append(all, Finding{Severity: Note, Cause: cause, Page: page})
	}
	if f.ReadOnlyMounts {
		all = append(all, Finding{Severity: Error, Cause: "the filesystem of the volumes is read-only",
			Evidence: fmt.Sprintf("%s is on %s, mounted ro", b.Root, f.Filesystem),
			Remedy:   "see dmesg on the node, and mount it writable", Page: pageNotReady})
	}
	switch f.Filesystem {
	case "unknown":
		return all
	case "btrfs":
		note(b.Root+" is on btrfs: snapshots share blocks; whether quotas are on was not checked", pageSizes)
		return all
	case "xfs":
		note(b.Root+" is on xfs: whether it has reflink=1 was not checked (xfs_info)", pageCost)
	case "ext4":
		note(b.Root+" is on ext4: it has no reflinks, so a snapshot copies the data", pageCost)
	case "tmpfs", "ramfs", "overlay", "squashfs", "nfs", "nfs4", "cifs":
		all = append(all, Finding{Severity: Warning, Cause: "the filesystem of the volumes is not that of a disk of " +
			"the node", Evidence: fmt.Sprintf("%s is on %s", b.Root, f.Filesystem),
			Remedy: "mount a disk with xfs, btrfs or ext4 there", Page: pageDirectory})
		return all
	default:
		note(fmt.Sprintf("%s is on %s: it has neither quotas nor reflinks for the driver", b.Root, f.Filesystem),
			pageSizes)
		return all
	}
	if !f.ProjectQuotas {
		note(b.Root+" is mounted without prjquota: sizes of directories are not enforced", pageSizes)
	}
	return all
}

// nodeModules judges the modules. A filesystem is loaded by mount(2), a loop device is not always.
func (b before) nodeModules(v *cluster.View) []Finding {
	return facts(v, func(f probe.Facts) (all []Finding) {
		missing := func(s Severity, module, effect string) {
			all = append(all, Finding{Severity: s, Cause: "the kernel has no module " + module + ": " + effect,
				Evidence: "kernel " + f.Kernel + " neither has it loaded nor lists it in /lib/modules",
				Remedy:   "install the package with the modules of this kernel", Page: pageRequires})
		}
		switch f.Modules["loop"] {
		case probe.Missing:
			missing(Error, "loop", "images cannot be mounted")
		case probe.Available:
			all = append(all, Finding{Severity: Warning, Cause: "the module loop is not loaded: images need " +
				"/dev/loop-control", Evidence: "/dev/loop-control does not exist, and /lib/modules lists loop",
				Remedy: "modprobe loop, and name loop in /etc/modules-load.d", Page: pageRequires})
		default:
		}
		if f.Modules["ext4"] == probe.Missing {
			missing(Error, "ext4", "images of the class causeway-hostpath-image cannot be mounted")
		}
		if b.SMB && f.Modules["cifs"] == probe.Missing {
			missing(Error, "cifs", "shares cannot be mounted")
		}
		for _, fs := range []string{"xfs", "btrfs"} {
			if f.Modules[fs] == probe.Missing {
				missing(Note, fs, "classes with fsType "+fs+" are not possible")
			}
		}
		return all
	})
}

func (b before) kubeletRoot(v *cluster.View) []Finding {
	return facts(v, func(f probe.Facts) []Finding {
		root, unclear := f.KubeletRoot()
		one := Finding{Severity: Error, Cause: "the directory of the kubelet is not that of the chart",
			Page: pageConditions}
		switch {
		case unclear != "" || root == b.Kubelet:
			return nil
		case root != "":
			one.Evidence = fmt.Sprintf("the kubelet has its pods in %s, and kubeletDir is %s", root, b.Kubelet)
			one.Remedy = "set kubeletDir to " + root
		default:
			one.Evidence = "the kubelet has its pods in none of " + strings.Join(sorted(f.KubeletRoots), ", ")
			one.Remedy = "find --root-dir of the kubelet, and set kubeletDir"
		}
		return []Finding{one}
	})
}
