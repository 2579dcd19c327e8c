package cluster_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/internal/manifests"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// The rights that doctor asks for are in the roles of every configuration of the chart: another
// right would be a false alarm there.
func TestTheChartGivesTheNeededRights(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(fake.Root(), "test", "cluster", "chart", "testdata", "*"))
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	asked := 0
	for _, file := range files {
		data, err := manifests.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules []rbacv1.PolicyRule
		var deployments []appsv1.Deployment
		for _, doc := range strings.Split(data, "\n---\n") {
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch kind.Kind {
			case "ClusterRole", "Role":
				var r rbacv1.ClusterRole
				if err := yaml.Unmarshal([]byte(doc), &r); err != nil {
					t.Fatal(err)
				}
				rules = append(rules, r.Rules...)
			case "Deployment":
				var d appsv1.Deployment
				if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
					t.Fatal(err)
				}
				deployments = append(deployments, d)
			}
		}
		for _, d := range deployments {
			w := &cluster.Workload{Template: d.Spec.Template}
			for _, r := range cluster.RightsOf(&cluster.Driver{Controller: w}) {
				for _, verb := range strings.Fields(r.Verbs) {
					asked++
					if !slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
						return slices.Contains(rule.APIGroups, r.Group) && slices.Contains(rule.Resources, r.Resource) && slices.Contains(rule.Verbs, verb)
					}) {
						t.Errorf("%s, %s: no role permits %s %s.%s", filepath.Base(file), d.Name, verb, r.Resource, r.Group)
					}
				}
			}
		}
	}
	if asked < 100 {
		t.Errorf("%d rights were compared", asked)
	}
}

// A driver with other names is found by the flag --driver-name.
func TestDriversAreFoundByTheirFlags(t *testing.T) {
	c := fake.Healthy()
	d := fake.Get[*appsv1.Deployment](c, "causeway-controller")
	d.Name, d.Labels["app.kubernetes.io/instance"] = "disk", "r1"
	for i, arg := range d.Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "--driver-name=") {
			d.Spec.Template.Spec.Containers[0].Args[i] = "--driver-name=disk.example.com"
		}
	}
	for selection, want := range map[cluster.Selection]string{
		{}: "disk.example.com " + fake.Driver, {Release: "r1"}: "disk.example.com", {Driver: fake.Driver}: fake.Driver,
		{Namespace: "causeway", Driver: "disk.example.com"}: "disk.example.com",
	} {
		found, err := cluster.Find(t.Context(), c.Clients().Client, selection)
		var names []string
		for _, d := range found {
			names = append(names, d.Name)
		}
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%+v: %v, %v, want %s", selection, names, err, want)
		}
	}
}
