package kube

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// RBAC has the names in the roles and bindings.
type RBAC struct {
	Prefix         string // begins every name, such as "my-driver"
	AccountIn      string // the service account's namespace, if it is another
	Namespace      string // where the service account, the leases and the capacities are
	ServiceAccount string
}

// Grant has the rules of a controller.
type Grant struct {
	Controller string
	Rules      Rules
}

// YAML returns the objects of grants as kubectl apply takes them.
func (r RBAC) YAML(grants []Grant) ([]byte, error) { return documents(r.objects(grants)) }

// objects returns a ClusterRole for each controller that needs one, so that a controller that is
// off adds no rights, a Role for the namespace of all controllers, and the bindings of these to
// the service account.
func (r RBAC) objects(grants []Grant) []any {
	var objects []any
	var local []rbacv1.PolicyRule
	for _, g := range grants {
		if len(g.Rules.Cluster) > 0 {
			objects = append(objects, r.clusterRole(g)...)
		}
		local = append(local, g.Rules.Namespace...)
	}
	if len(local) > 0 {
		objects = append(objects, r.role(local)...)
	}
	return objects
}

// documents returns objects as YAML documents.
func documents(objects []any) ([]byte, error) {
	var out bytes.Buffer
	for i, o := range objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("write %T as YAML: %w", o, err)
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

func (r RBAC) clusterRole(g Grant) []any {
	name := r.Prefix + "-" + g.Controller
	return []any{
		rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: merge(g.Rules.Cluster)},
		rbacv1.ClusterRoleBinding{
			TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects: r.subjects(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
				Name: name},
		},
	}
}

func (r RBAC) role(rules []rbacv1.PolicyRule) []any {
	meta := metav1.ObjectMeta{Name: r.Prefix, Namespace: r.Namespace}
	return []any{
		rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: meta, Rules: merge(rules)},
		rbacv1.RoleBinding{
			TypeMeta: kind("RoleBinding"), ObjectMeta: meta,
			Subjects: r.subjects(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		},
	}
}

func (r RBAC) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: r.ServiceAccount,
		Namespace: cmp.Or(r.AccountIn, r.Namespace)}}
}

func kind(name string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: name}
}

// triple is a single permission.
type triple struct{ group, resource, verb string }

// narrow reports whether a rule names objects, or has no resource. Such a rule is not a sum of
// triples.
func narrow(r rbacv1.PolicyRule) bool { return len(r.ResourceNames) > 0 || len(r.NonResourceURLs) > 0 }

// triples returns the triples of rules, without narrow rules.
func triples(rules []rbacv1.PolicyRule) map[triple]bool {
	all := map[triple]bool{}
	for _, r := range rules {
		if narrow(r) {
			continue
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all[triple{group, resource, verb}] = true
				}
			}
		}
	}
	return all
}

// merge returns the same permissions with a rule for each resource, in order: equal permissions
// have equal text.
func merge(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	sorted := slices.SortedFunc(maps.Keys(triples(rules)), func(a, b triple) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.resource, b.resource), cmp.Compare(a.verb, b.verb))
	})
	var merged []rbacv1.PolicyRule
	for i, t := range sorted {
		if i > 0 && sorted[i-1].group == t.group && sorted[i-1].resource == t.resource {
			last := &merged[len(merged)-1]
			last.Verbs = append(last.Verbs, t.verb)
			continue
		}
		merged = append(merged, rule(t.group, t.resource, t.verb))
	}
	for _, r := range rules {
		if narrow(r) {
			merged = append(merged, r)
		}
	}
	return merged
}
