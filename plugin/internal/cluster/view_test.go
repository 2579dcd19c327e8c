package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// The times of an event are whole seconds, its name has nanoseconds.
func TestTheNewestEventIsTheFirst(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	event := func(name string, last, created time.Time) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(created)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "app"}, LastTimestamp: metav1.NewTime(last)}
	}
	want := []string{"app.18a0c5f3d2b1e00f", "app.18a0c5f3d2b1e00a", "app.18a0c5f3d2b1dfff", "own-b", "own-a", "own-c", "app.18a0c5f3d2b1e0ff"}
	events := []corev1.Event{event("app.18a0c5f3d2b1e0ff", now.Add(-time.Second), now), event("own-c", now, now.Add(-time.Minute)),
		event("own-a", now, now), event("app.18a0c5f3d2b1dfff", now, now), event("own-b", now, now),
		event("app.18a0c5f3d2b1e00a", now, now), event("app.18a0c5f3d2b1e00f", now, now)}
	for range 2 {
		var got []string
		for _, e := range (&cluster.View{Events: events}).EventsOf("Pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}}) {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		slices.Reverse(events)
	}
}

// An object that was made again has the name of the earlier one, whose events stay for an hour.
func TestEventsOfAnEarlierObjectDoNotCount(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app", UID: "new"}}
	event := func(uid types.UID) corev1.Event {
		return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "app", UID: uid}}
	}
	v := &cluster.View{Events: []corev1.Event{event("old"), event("new"), event("")}}
	for _, e := range v.EventsOf("Pod", pod) {
		if e.InvolvedObject.UID == "old" {
			t.Error("an event of the earlier object counts")
		}
	}
	if n := len(v.EventsOf("Pod", pod)); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
}

// counted counts the requests to pods.
type counted struct {
	cluster.Pods
	requests atomic.Int64
}

func (c *counted) Get(ctx context.Context, pod *corev1.Pod, port int32, path string) cluster.Answer {
	c.requests.Add(1)
	return c.Pods.Get(ctx, pod, port, path)
}

// TestATenantWithTheLabelsOfADriver: the commands do not ask pods of everybody without end.
func TestATenantWithTheLabelsOfADriver(t *testing.T) {
	c := fake.Healthy()
	asked := &counted{Pods: c.Pods}
	gather := func(namespace string) (*cluster.View, error) {
		client := c.Clients().Client
		client.Pods = asked
		return cluster.Gather(t.Context(), client, cluster.Selection{Namespace: namespace})
	}
	v, err := gather("")
	if err != nil || v.Unread(cluster.Answers) != nil {
		t.Fatalf("%v, %v", err, v.Unread(cluster.Answers))
	}
	installed := v.Drivers[0]
	cluster.SetMaxAnswers(t, 100)
	v, err = gather("")
	if err == nil {
		err = v.Unread(cluster.Answers)
	}
	if err == nil || !strings.Contains(err.Error(), "--namespace") {
		t.Errorf("answers of more than 100 bytes: %v", err)
	}
	cluster.SetMaxAnswers(t, -1)
	before := asked.requests.Load()
	if _, err := gather(""); err != nil || asked.requests.Load() != before {
		t.Errorf("beyond the limit %d requests, %v", asked.requests.Load()-before, err)
	}
	if v, err := gather(installed.Namespace); err != nil || v.Unread(cluster.Answers) != nil {
		t.Errorf("in one namespace: %v, %v", err, v.Unread(cluster.Answers))
	}
	for i := range 8 {
		set := fake.Get[*appsv1.DaemonSet](c, installed.Nodes[0].Name).DeepCopy()
		set.Namespace = fmt.Sprint("tenant-", i)
		c.Add(set)
	}
	if _, err := gather(""); err == nil || !strings.Contains(err.Error(), "choose one with --namespace") {
		t.Errorf("drivers in 9 namespaces: %v", err)
	}
	if v, err := gather(installed.Namespace); err != nil || len(v.Drivers) != 1 {
		t.Errorf("in one namespace: %v", err)
	}
}
