package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Serves reports whether the API server has all of the kinds, which may be those of CRDs. Serves
// asks until the server answers, or ctx is done.
func (c *Cluster) Serves(ctx context.Context, groupVersion string, kinds ...string) bool {
	client := c.Client("discovery", unlimited).Kube.Discovery()
	var have *metav1.APIResourceList
	err := patient(ctx, func() (err error) {
		have, err = client.ServerResourcesForGroupVersion(groupVersion)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil || have == nil {
		return false
	}
	for _, kind := range kinds {
		if !slices.ContainsFunc(have.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }) {
			return false
		}
	}
	return true
}

// patient repeats a request until the API server answers, or ctx is done.
func patient(ctx context.Context, ask func() error) error {
	var said time.Time
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		err := ask()
		if err != nil && time.Since(said) > stillWaiting {
			said = time.Now()
			klog.InfoS("Still waiting for the API server", "err", err)
		}
		return err == nil, nil
	})
}

// Await ends the process when the API server has all of the kinds: the next process starts their
// controller.
func (c *Cluster) Await(ctx context.Context, groupVersion string, kinds ...string) {
	go func() {
		for !c.Serves(ctx, groupVersion, kinds...) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(stillWaiting):
			}
		}
		if ctx.Err() == nil {
			c.fail(fmt.Errorf("the CRDs for %s are installed now; a new process works on them", groupVersion))
		}
	}()
}

// Always adds the label "controller" to all metrics of a gatherer.
func Always(g prometheus.Gatherer, controller string) prometheus.Gatherer {
	return Labeled{g, func(string, *dto.Metric) string { return controller }}
}
