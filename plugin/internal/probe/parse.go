package probe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// State is the state of a path or of a module.
type State string

// States of a path. Link and Denied say nothing about a directory there.
const (
	Directory State = "directory"
	Other     State = "other" // no directory
	Absent    State = "absent"
	Link      State = "link" // a component is a symbolic link
	Denied    State = "denied"
	Own       State = "own" // the root directory of the node's kubelet
)

// Contents of a root.
const (
	Empty   State = "empty"
	Served  State = "served"  // by a driver
	Foreign State = "foreign" // files of others
)

// States of a module of the kernel.
const (
	Loaded    State = "loaded"
	Available State = "available" // as a file
	Missing   State = "missing"
	Unknown   State = "unknown"
)

// Facts are facts about a node.
type Facts struct {
	Kernel         string
	Root           State
	Content        State  // of a root that is a directory
	Filesystem     string // of the root
	Options        []string
	Modules        map[string]State // ext4, xfs, btrfs, cifs and loop
	KubeletRoots   map[string]State
	ProjectQuotas  bool
	ReadOnlyMounts bool // the filesystem of the root is read-only
}

// modules are the modules that the script examines.
var modules = []string{"ext4", "xfs", "btrfs", "cifs", "loop"}

// errFormat reports an output that is not that of the script, or is not complete.
var errFormat = errors.New("the output of the pod is not that of the script")

// Parse parses the output of the script. It comes from a node, so nothing else is accepted.
func Parse(text string) (Facts, error) {
	f := Facts{Modules: map[string]State{}, KubeletRoots: map[string]State{}}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if n := len(lines); n < 2 || lines[0] != "facts 1" || lines[n-1] != "end" {
		return Facts{}, fmt.Errorf("%w: it has no beginning or no end", errFormat)
	}
	seen := map[string]bool{}
	for _, line := range lines[1 : len(lines)-1] {
		words := strings.Fields(line)
		key := ""
		if len(words) > 0 {
			key = words[0]
		}
		if (key == "module" || key == "kubelet") && len(words) == 3 {
			key += " " + words[1]
		}
		if seen[key] || !f.set(words) {
			return Facts{}, fmt.Errorf("%w: %.100q", errFormat, line)
		}
		seen[key] = true
	}
	complete := f.Kernel != "" && f.Root != "" && len(f.Modules) == len(modules) &&
		(f.Root == Directory) == (f.Content != "") && (f.Content != "") == (f.Filesystem != "")
	if !complete {
		return Facts{}, fmt.Errorf("%w: it is not complete", errFormat)
	}
	return f, nil
}

// set sets one fact, and reports whether it is valid.
func (f *Facts) set(words []string) bool {
	if len(words) < 2 {
		return false
	}
	value := State(words[len(words)-1])
	switch key := words[0]; {
	case key == "kernel" && len(words) == 2:
		f.Kernel = words[1]
	case key == "root" && len(words) == 2:
		f.Root = value
		return slices.Contains([]State{Directory, Other, Absent, Link, Denied}, value)
	case key == "content" && len(words) == 2:
		f.Content = value
		return slices.Contains([]State{Empty, Served, Foreign, Denied}, value)
	case key == "filesystem" && len(words) <= 3:
		f.Filesystem = words[1]
		if len(words) == 3 {
			f.Options = strings.Split(words[2], ",")
		}
		f.ReadOnlyMounts = slices.Contains(f.Options, "ro")
		f.ProjectQuotas = slices.Contains(f.Options, "prjquota") || slices.Contains(f.Options, "pquota")
	case key == "module" && len(words) == 3:
		f.Modules[words[1]] = value
		return slices.Contains(modules, words[1]) &&
			slices.Contains([]State{Loaded, Available, Missing, Unknown}, value)
	case key == "kubelet" && len(words) == 3:
		f.KubeletRoots[words[1]] = value
		return slices.Contains([]State{Own, Other, Absent, Link, Denied}, value)
	default:
		return false
	}
	return true
}

// KubeletRoot returns the root directory of the kubelet, or "" and the reason if it is not known.
func (f Facts) KubeletRoot() (dir, reason string) {
	var unclear []string
	for dir, state := range f.KubeletRoots {
		switch state {
		case Own:
			return dir, ""
		case Link, Denied:
			unclear = append(unclear, dir+": "+string(state))
		case Directory, Other, Absent, Empty, Served, Foreign, Loaded, Available, Missing, Unknown:
		}
	}
	slices.Sort(unclear)
	if len(unclear) == 0 {
		return "", ""
	}
	return "", strings.Join(unclear, ", ")
}
