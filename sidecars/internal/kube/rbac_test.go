package kube

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

func TestRBACIsTheUnionOfTheEnabledControllers(t *testing.T) {
	r := RBAC{Prefix: "disk", Namespace: "storage", ServiceAccount: "disk-controller"}
	got, err := r.YAML([]Grant{
		{"one", Rules{
			Cluster: []rbacv1.PolicyRule{rule("", "events", "patch", "create"), reading("", "pods"),
				rule("", "pods", "get")},
			Namespace: []rbacv1.PolicyRule{rule("coordination.k8s.io", "leases", "get")},
		}},
		{"two", Rules{Namespace: []rbacv1.PolicyRule{
			rule("coordination.k8s.io", "leases", "update", "get"),
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"disk"},
				Verbs: []string{"get"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: disk-one
rules:
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - create
  - patch
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: disk-one
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: disk-one
subjects:
- kind: ServiceAccount
  name: disk-controller
  namespace: storage
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: disk
  namespace: storage
rules:
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  verbs:
  - get
  - update
- apiGroups:
  - ""
  resourceNames:
  - disk
  resources:
  - configmaps
  verbs:
  - get
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: disk
  namespace: storage
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: disk
subjects:
- kind: ServiceAccount
  name: disk-controller
  namespace: storage
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
