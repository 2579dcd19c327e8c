package main

import "testing"

// What upstream's mains pass to csi-lib-utils, which makes a lease's name of it: cmd/*/main.go of external-attacher v4.13.0,
// external-provisioner v6.3.0, external-resizer v2.3.0 and external-snapshotter v8.7.0, and of external-health-monitor v0.18.0. A process with another name would not
// see the old sidecar, and work beside it.
func TestLocksAreUpstreams(t *testing.T) {
	want := map[string]string{
		"attacher":            "external-attacher-leader-hostpath.csi.k8s.io",
		"provisioner":         "hostpath.csi.k8s.io",
		"resizer":             "external-resizer-hostpath-csi-k8s-io",
		"snapshotter":         "external-snapshotter-leader-hostpath.csi.k8s.io",
		"snapshot-controller": "snapshot-controller-leader",
		"health-monitor":      "external-health-monitor-leader-hostpath.csi.k8s.io",
	}
	for _, k := range command().Controllers {
		lock := k.Needs().Lock
		if lock == nil {
			continue
		}
		if got := lock("hostpath.csi.k8s.io"); got != want[k.Name()] {
			t.Errorf("%s: %s, want %q", k.Name(), got, want[k.Name()])
		}
		delete(want, k.Name())
	}
	for name := range want {
		t.Errorf("%s has no lock", name)
	}
}
