package kube

import (
	"bytes"
	"fmt"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/ssa"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// source is where a controller's rights come from: the packages that use them, and the manifest
// that upstream ships.
type source struct {
	all      Rules // with every option on
	module   string
	manifest string
	packages []string // by prefix
}

var everyProvisioner = ProvisionerRuleOptions{
	Secrets: true, Topology: true, Publish: true, Snapshots: true, SnapshotSweeper: true, Attributes: true, CrossNamespace: true,
	Capacity: true, CapacityOwner: 2,
}

var sources = map[string]source{
	"attacher": {
		AttacherRules(true), "github.com/kubernetes-csi/external-attacher/v4", "deploy/kubernetes/rbac.yaml",
		[]string{"github.com/kubernetes-csi/external-attacher/v4/"},
	},
	"provisioner": {
		ProvisionerRules(everyProvisioner), "github.com/kubernetes-csi/external-provisioner/v6", "deploy/kubernetes/rbac.yaml",
		[]string{"github.com/kubernetes-csi/external-provisioner/v6/",
			"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"},
	},
	"resizer": {
		ResizerRules(true, true, true), "github.com/kubernetes-csi/external-resizer/v2", "deploy/kubernetes/rbac.yaml",
		[]string{"github.com/kubernetes-csi/external-resizer/v2/"},
	},
	"snapshotter": {
		SnapshotterRules(true, true), "github.com/kubernetes-csi/external-snapshotter/v8", "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml",
		[]string{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller", "github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8/pkg/group_snapshotter"},
	},
	"snapshot-controller": {
		SnapshotControllerRules(true, true), "github.com/kubernetes-csi/external-snapshotter/v8", "deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml",
		[]string{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"},
	},
}

// ours are rights that upstream's manifest does not have, not even in a comment, and why we do.
var ours = map[string]string{
	"provisioner: storage.k8s.io volumeattributesclasses get": "it gets the class that a claim names " +
		"(prepareProvision); with upstream's manifest only a service account that it shares with the resizer may",
}

// theirs are rights that upstream's manifest has and we do not, and why not.
var theirs = map[string]string{
	"*:  events list":   "a recorder lists none",
	"*:  events watch":  "nor watches any",
	"*:  events update": "and patches what occurs again",
	"*:  secrets list":  "secrets are looked up by name",
	"*:  secrets watch": "secrets are looked up by name",

	"provisioner: snapshot.storage.k8s.io volumesnapshotcontents list": "it gets the one that a snapshot is bound to",
	"provisioner: storage.k8s.io csistoragecapacities patch":           "it updates them",

	"snapshotter: snapshot.storage.k8s.io volumesnapshotcontents update":           "it patches them, and updates their status",
	"snapshotter: groupsnapshot.storage.k8s.io volumegroupsnapshotcontents update": "it patches them, and updates their status",

	"snapshot-controller: snapshot.storage.k8s.io volumesnapshotcontents update":                 "it patches them",
	"snapshot-controller: groupsnapshot.storage.k8s.io volumegroupsnapshotcontents update":       "it patches them",
	"snapshot-controller: groupsnapshot.storage.k8s.io volumegroupsnapshotcontents/status patch": "the snapshotter does that",
	"snapshot-controller: groupsnapshot.storage.k8s.io volumegroupsnapshots/status patch":        "it updates it",
}

// unseen are rights whose use cannot be seen in the source.
var unseen = map[string]string{
	"provisioner:  pods get":            "owner.Lookup gets objects of any kind",
	"provisioner: apps replicasets get": "owner.Lookup gets objects of any kind",
}

func name(controller string, t triple) string {
	return fmt.Sprintf("%s: %s %s %s", controller, t.group, t.resource, t.verb)
}

// explained reports whether a right is in a list, for a controller or for all, and crosses the
// entry off.
func explained(list, left map[string]string, controller string, t triple) bool {
	for _, key := range []string{name(controller, t), name("*", t)} {
		if list[key] != "" {
			delete(left, key)
			return true
		}
	}
	return false
}

func rights(r Rules) map[triple]bool { return triples(slices.Concat(r.Cluster, r.Namespace)) }

func TestRulesAreUpstreams(t *testing.T) {
	oursLeft, theirsLeft := maps.Clone(ours), maps.Clone(theirs)
	for controller, s := range sources {
		active, commented := manifest(t, s)
		mine := rights(s.all)
		for r := range mine {
			if !active[r] && !commented[r] && !explained(ours, oursLeft, controller, r) {
				t.Errorf("%s is not in upstream's manifest: take it away, or say why it is needed", name(controller, r))
			}
		}
		for _, upstreams := range []map[triple]bool{active, commented} {
			for r := range upstreams {
				if !mine[r] && r.resource != "leases" && !explained(theirs, theirsLeft, controller, r) {
					t.Errorf("%s is in upstream's manifest only: add it, or say why it is not needed",
						name(controller, r))
				}
			}
		}
	}
	for what := range oursLeft {
		t.Errorf("an exception of ours is not one: %s", what)
	}
	for what := range theirsLeft {
		t.Errorf("an exception of upstream's is not one: %s", what)
	}
}

// TestElectionRulesAreLikeUpstreams: no process lists, watches or deletes a lease.
func TestElectionRulesAreLikeUpstreams(t *testing.T) {
	want := map[triple]bool{}
	for _, verb := range []string{"create", "get", "update", "patch"} {
		want[triple{"coordination.k8s.io", "leases", verb}] = true
	}
	for _, verb := range []string{"create", "patch"} {
		want[triple{"", "events", verb}] = true
	}
	if got := rights(ElectionRules()); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for controller, s := range sources {
		active, _ := manifest(t, s)
		for _, verb := range []string{"create", "get", "update"} {
			if !active[triple{"coordination.k8s.io", "leases", verb}] {
				t.Errorf("%s: upstream's leases have no %s", controller, verb)
			}
		}
	}
}

func TestRulesFollowOptions(t *testing.T) {
	without := func(change func(*ProvisionerRuleOptions)) Rules {
		o := everyProvisioner
		change(&o)
		return ProvisionerRules(o)
	}
	tests := map[string]struct {
		rules   Rules
		absent  []string // resources
		present []string
	}{
		"an attacher without secrets": {AttacherRules(false), []string{"secrets"},
			[]string{"persistentvolumes"}},
		"a resizer that takes volumes as free": {ResizerRules(false, false, true), []string{"pods", "secrets"},
			[]string{"volumeattributesclasses"}},
		"a resizer that does not modify": {ResizerRules(true, true, false), []string{"volumeattributesclasses"},
			[]string{"pods", "secrets"}},
		"a snapshotter without groups": {SnapshotterRules(false, false),
			[]string{"secrets", "volumegroupsnapshotcontents",
				"volumegroupsnapshotclasses"}, []string{"volumesnapshotcontents"}},
		"a snapshot controller without groups": {SnapshotControllerRules(false, true),
			[]string{"volumegroupsnapshots", "volumesnapshotcontents/status"}, []string{"nodes"}},
		"a snapshot controller in one place": {SnapshotControllerRules(true, false), []string{"nodes"},
			[]string{"volumegroupsnapshots"}},
		"a provisioner without secrets": {without(func(o *ProvisionerRuleOptions) { o.Secrets = false }),
			[]string{"secrets"}, nil},
		"one that does not attach": {without(func(o *ProvisionerRuleOptions) { o.Publish = false }),
			[]string{"volumeattachments"}, nil},
		"one without snapshots": {without(func(o *ProvisionerRuleOptions) {
			o.Snapshots,
				o.SnapshotSweeper = false, false
		}), []string{"volumesnapshots", "volumesnapshotcontents"}, nil},
		"one without attributes": {without(func(o *ProvisionerRuleOptions) { o.Attributes = false }),
			[]string{"volumeattributesclasses"}, nil},
		"one that stays in a namespace": {without(func(o *ProvisionerRuleOptions) { o.CrossNamespace = false }),
			[]string{"referencegrants"}, nil},
		"one on every node": {without(func(o *ProvisionerRuleOptions) { o.NodeDeployment = true }),
			[]string{"nodes", "csinodes"}, []string{"csistoragecapacities"}},
		"one without topology or capacity": {without(func(o *ProvisionerRuleOptions) { o.Topology, o.Capacity = false, false }), []string{"nodes", "csinodes", "csistoragecapacities", "pods", "replicasets"}, nil},
		"one with capacity but no topology": {without(func(o *ProvisionerRuleOptions) { o.Topology = false }), nil,
			[]string{"nodes", "csinodes"}},
		"capacities that a StatefulSet owns": {without(func(o *ProvisionerRuleOptions) { o.CapacityOwner = 1 }),
			[]string{"replicasets"}, []string{"pods"}},
		"capacities that the pod owns": {without(func(o *ProvisionerRuleOptions) { o.CapacityOwner = 0 }),
			[]string{"replicasets"}, []string{"pods"}},
		"capacities that nobody owns": {without(func(o *ProvisionerRuleOptions) { o.CapacityOwner = -1 }),
			[]string{"replicasets", "pods"}, []string{"csistoragecapacities"}},
		"a provisioner that has all it can use": {without(func(*ProvisionerRuleOptions) {}), nil,
			[]string{"secrets", "pods", "replicasets", "nodes", "referencegrants"}},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			has := map[string]bool{}
			for r := range rights(tt.rules) {
				has[r.resource] = true
			}
			for _, r := range tt.absent {
				if has[r] {
					t.Errorf("has a rule for %s", r)
				}
			}
			for _, r := range tt.present {
				if !has[r] {
					t.Errorf("has no rule for %s", r)
				}
			}
		})
	}
}

// commentedRule is a rule that upstream's manifests have in a comment.
var commentedRule = regexp.MustCompile(`(?m)^ *# *- apiGroups: (\[.*\])\n *# *resources: (\[.*\])\n *# *verbs: (\[.*\])`)

// manifest returns the rights in upstream's manifest, and those that it has in comments.
func manifest(t *testing.T, s source) (active, commented map[triple]bool) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", s.module).Output()
	if err != nil {
		t.Fatalf("where is %s? %v", s.module, err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), s.manifest))
	if err != nil {
		t.Fatal(err)
	}
	active, commented = map[triple]bool{}, map[triple]bool{}
	for _, document := range bytes.Split(text, []byte("\n---")) {
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := yaml.Unmarshal(document, &role); err != nil {
			t.Fatal(err)
		}
		maps.Copy(active, triples(role.Rules))
	}
	for _, m := range commentedRule.FindAllSubmatch(text, -1) {
		var r rbacv1.PolicyRule
		for i, into := range []*[]string{&r.APIGroups, &r.Resources, &r.Verbs} {
			if err := yaml.Unmarshal(m[i+1], into); err != nil {
				t.Fatal(err)
			}
		}
		maps.Copy(commented, triples([]rbacv1.PolicyRule{r}))
	}
	if len(active) == 0 {
		t.Fatalf("%s of %s has no rules", s.manifest, s.module)
	}
	return active, commented
}

// TestRulesMatchTheCallsOfUpstream reads the source: each call of a client, informer or lister
// needs a right, and each right that changes something, or that is not an informer's, needs a call.
func TestRulesMatchTheCallsOfUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles five controllers where that was never done")
	}
	program, own, _ := load(t, readers, doors)
	all := functions(program)
	unseenLeft := maps.Clone(unseen)
	for controller, s := range sources {
		c := newCalls(all, own, s.packages)
		mine := rights(s.all)
		for r, where := range c.need {
			if !mine[r] {
				t.Errorf("%s is called in %s, and no rule allows it", name(controller, r), where)
			}
		}
		for r := range mine {
			if _, ok := c.need[r]; !ok && !informed(c.need, mine, r) && !explained(unseen, unseenLeft, controller, r) {
				t.Errorf("%s is allowed, and nobody calls it", name(controller, r))
			}
		}
	}
	for what := range unseenLeft {
		t.Errorf("what cannot be seen is not there: %s", what)
	}
}

// informed reports whether a right is the get that comes with an informer.
func informed(need map[triple]string, mine map[triple]bool, r triple) bool {
	_, listed := need[triple{r.group, r.resource, "list"}]
	return r.verb == "get" && listed && mine[triple{r.group, r.resource, "list"}]
}

// calls are the API calls of functions.
type calls struct {
	need    map[triple]string // with a function that does
	callers map[*ssa.Function][]ssa.CallInstruction
}

// newCalls looks at the functions of packages, and at those of other upstream packages that they
// call.
func newCalls(functions map[*ssa.Function]bool, own map[string]bool, packages []string) calls {
	c := calls{map[triple]string{}, map[*ssa.Function][]ssa.CallInstruction{}}
	seen := map[*ssa.Function]bool{}
	var todo []*ssa.Function
	for fn := range functions {
		if slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(packageOf(fn), p) }) {
			todo = append(todo, fn)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] {
		if seen[todo[0]] {
			continue
		}
		seen[todo[0]] = true
		for _, b := range todo[0].Blocks {
			for _, i := range b.Instrs {
				call, ok := i.(ssa.CallInstruction)
				if !ok {
					continue
				}
				if callee := call.Common().StaticCallee(); callee != nil && own[packageOf(callee)] {
					c.callers[callee] = append(c.callers[callee], call)
					todo = append(todo, callee)
				}
			}
		}
	}
	for fn := range seen {
		for _, b := range fn.Blocks {
			for _, i := range b.Instrs {
				if call, ok := i.(ssa.CallInstruction); ok && call.Common().IsInvoke() {
					c.invoke(fn, call.Common())
				}
			}
		}
	}
	return c
}

// kinds of interfaces for the same resource: clients, informers and listers of the packages of
// generated clients.
var apiInterface = regexp.MustCompile(`/(typed|informers|listers|externalversions)/(?:apis/)?([a-z]+)/v1(?:beta1)?\.(?:Typed)?([A-Za-z]+?)(?:Namespace)?(Interface|Informer|Lister)$`)

var apiGroups = map[string]string{
	"core": "", "storage": storageGroup, "volumesnapshot": snapshotGroup, "volumegroupsnapshot": groupSnapshotGroup, "coordination": "coordination.k8s.io",
}

func (c calls) invoke(fn *ssa.Function, call *ssa.CallCommon) {
	add := func(group, resource, verb string) { c.need[triple{group, resource, verb}] = fn.String() }
	method := call.Method.Name()
	if method == "Events" { // the client of them is given to a recorder
		add("", "events", "create")
		add("", "events", "patch")
		return
	}
	m := apiInterface.FindStringSubmatch(types.TypeString(call.Value.Type(), nil))
	if m == nil {
		return
	}
	group, ok := apiGroups[m[2]]
	if !ok {
		group = "gateway.networking.k8s.io"
	}
	resource := plural(strings.ToLower(m[3]))
	if m[4] != "Interface" {
		add(group, resource, "list")
		add(group, resource, "watch")
		return
	}
	switch method {
	case "UpdateStatus":
		add(group, resource+"/status", "update")
	case "Patch":
		for _, sub := range c.texts(call.Args[len(call.Args)-1]) {
			add(group, strings.TrimSuffix(resource+"/"+sub, "/"), "patch")
		}
	default: // DeleteCollection would be another verb, and an unknown verb fails
		add(group, resource, strings.ToLower(method))
	}
}

func plural(kind string) string {
	switch {
	case strings.HasSuffix(kind, "y"):
		return strings.TrimSuffix(kind, "y") + "ies"
	case strings.HasSuffix(kind, "s"):
		return kind + "es"
	}
	return kind + "s"
}

// texts returns the possible values of a list of arguments, with at most a single element, here or
// where the function is called.
func (c calls) texts(v ssa.Value) []string {
	switch v := v.(type) {
	case *ssa.Slice:
		var all []string
		for _, r := range *v.X.Referrers() {
			if at, ok := r.(*ssa.IndexAddr); ok {
				for _, s := range *at.Referrers() {
					if store, ok := s.(*ssa.Store); ok {
						all = append(all, c.texts(store.Val)...)
					}
				}
			}
		}
		return all
	case *ssa.Const:
		if v.Value == nil { // no argument
			return []string{""}
		}
		return []string{strings.Trim(v.Value.ExactString(), `"`)}
	case *ssa.Parameter:
		var all []string
		at := slices.Index(v.Parent().Params, v)
		for _, call := range c.callers[v.Parent()] {
			all = append(all, c.texts(call.Common().Args[at])...)
		}
		return all
	}
	return []string{"unknown"}
}
