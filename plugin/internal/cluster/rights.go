package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"
)

// Denied are rights that the ServiceAccount of a controller lacks.
type Denied struct {
	Account string   // namespace/name
	Rights  []string // such as: list persistentvolumes
}

// Right is a right that a sidecar needs with every configuration of the chart.
type Right struct {
	Group, Resource string
	Verbs           string // separated by spaces
	Namespaced      bool   // in the namespace of the driver only
}

// Needed has the rights of each sidecar. They are the common part of the roles that csi-sidecars
// rbac prints for the configurations of the chart, which a test holds: a right that only some
// configurations need would be a false alarm in the others.
var Needed = map[string][]Right{
	"": {{"coordination.k8s.io", "leases", "create get patch update", true}},
	"provisioner": {
		{"", "events", "create patch", false},
		{"", "persistentvolumeclaims", "get list update watch", false},
		{"", "persistentvolumes", "create delete get list patch watch", false},
		{"storage.k8s.io", "storageclasses", "get list watch", false},
	},
	"resizer": {
		{"", "persistentvolumeclaims", "get list watch", false},
		{"", "persistentvolumeclaims/status", "patch", false},
		{"", "persistentvolumes", "get list patch watch", false},
	},
	"snapshotter": {
		{"snapshot.storage.k8s.io", "volumesnapshotclasses", "get list watch", false},
		{"snapshot.storage.k8s.io", "volumesnapshotcontents", "get list patch watch", false},
		{"snapshot.storage.k8s.io", "volumesnapshotcontents/status", "patch update", false},
	},
	"health-monitor": {
		{"", "persistentvolumeclaims", "get list watch", false},
		{"", "persistentvolumeclaims/status", "patch", false},
		{"", "persistentvolumes", "get list watch", false},
	},
}

// capacityRights are those of a provisioner with --provisioner-enable-capacity.
var capacityRights = Right{"storage.k8s.io", "csistoragecapacities", "create delete get list update watch", true}

// RightsOf returns the rights that the controller of a driver needs.
func RightsOf(d *Driver) (all []Right) {
	if d.Controller == nil {
		return nil
	}
	add := func(more ...Right) {
		for _, r := range more {
			if !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	add(Needed[""]...)
	for _, c := range strings.Split(d.Controller.SidecarArgument("controllers"), ",") {
		add(Needed[c]...)
	}
	for _, c := range d.Controller.Template.Spec.Containers {
		if slices.Contains(c.Args, "--provisioner-enable-capacity") {
			add(capacityRights)
		}
	}
	return all
}

// denied asks the API server for the rights of the controllers' ServiceAccounts.
func (g *gatherer) denied(ctx context.Context) error {
	for _, d := range g.view.Drivers {
		if d.Controller == nil {
			continue
		}
		account := d.Controller.Template.Spec.ServiceAccountName
		lacks, err := g.lacks(ctx, d, account)
		if err != nil {
			return err
		}
		if len(lacks) > 0 {
			g.view.Denied = append(g.view.Denied, Denied{d.Namespace + "/" + account, lacks})
		}
	}
	return nil
}

// lacks returns the rights that a ServiceAccount lacks.
func (g *gatherer) lacks(ctx context.Context, d *Driver, account string) ([]string, error) {
	var run errgroup.Group
	run.SetLimit(8)
	var lacks []string
	for _, r := range RightsOf(d) {
		for _, verb := range strings.Fields(r.Verbs) {
			run.Go(func() error {
				ok, err := g.may(ctx, d.Namespace, account, r, verb)
				if err == nil && !ok {
					g.mu.Lock()
					defer g.mu.Unlock()
					lacks = append(lacks, strings.TrimSuffix(fmt.Sprintf("%s %s.%s", verb, r.Resource, r.Group), "."))
				}
				return err
			})
		}
	}
	err := run.Wait()
	slices.Sort(lacks)
	return lacks, err
}

// may reports whether a ServiceAccount has a right.
func (g *gatherer) may(ctx context.Context, namespace, account string, r Right, verb string) (bool, error) {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + namespace + ":" + account,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.Group, Resource: resource,
			Subresource: subresource, Verb: verb},
	}}
	if r.Namespaced {
		review.Spec.ResourceAttributes.Namespace = namespace
	}
	answer, err := g.client.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
