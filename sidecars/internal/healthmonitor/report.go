package healthmonitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// memory is the state of a claim with an abnormal volume.
type memory struct {
	// held are the last known conditions, which events have reported.
	held []v1.VolumeHealthCondition
	// since is the time at which the present set of statuses and reasons began.
	since metav1.Time
	// written is the last written status and the version of the claim in the cache at that time. It
	// counts until the cache has it.
	written   []v1.VolumeHealthCondition
	atVersion string
	// messageWritten is the time at which a message was last written.
	messageWritten time.Time
	// lastEvent is the last message of a VolumeCondition in an event, and lastEventAt the time of
	// the event.
	lastEvent   string
	lastEventAt time.Time
	// claim is for metrics.
	claim *v1.PersistentVolumeClaim
}

// memoryOf returns the memory of a claim. After a restart it is made from the status.
func (m *Monitor) memoryOf(c *v1.PersistentVolumeClaim) *memory {
	if r := m.memories[c.UID]; r != nil {
		return r
	}
	r := &memory{}
	if s := c.Status.HealthStatus; s != nil {
		r.held, r.since = normal(s.HealthConditions), s.LastTransitionTime
		if i := slices.IndexFunc(r.held, isVolumeCondition); i >= 0 {
			r.lastEvent = r.held[i].Message
		}
	}
	return r
}

// stored returns the conditions in the status of a claim at the API server.
func (r *memory) stored(c *v1.PersistentVolumeClaim) []v1.VolumeHealthCondition {
	switch {
	case r.atVersion != "" && r.atVersion == c.ResourceVersion:
		return r.written
	case c.Status.HealthStatus == nil:
		return nil
	}
	return normal(c.Status.HealthStatus.HealthConditions)
}

// reportAll reports all changes. Its errors are those of claims that could not be written.
func (m *Monitor) reportAll(ctx context.Context, targets map[string][]target, answers map[string]answer) error {
	memories := map[apitypes.UID]*memory{}
	var failures failures
	var group errgroup.Group
	group.SetLimit(m.Workers)
	for id, ts := range targets {
		for _, t := range ts {
			r := m.update(t.claim, answers[id])
			if len(r.held) == 0 && len(r.stored(t.claim)) == 0 && t.claim.Status.HealthStatus == nil {
				continue // nothing to remember, and nothing to write
			}
			memories[t.claim.UID] = r
			group.Go(func() error { failures.add(m.write(ctx, t.claim, r)); return nil })
		}
	}
	_ = group.Wait()
	m.memories = memories
	return failures.error()
}

// update updates the memory of a claim, and makes events for changes.
func (m *Monitor) update(c *v1.PersistentVolumeClaim, a answer) *memory {
	r := m.memoryOf(c)
	now := a.over(r.held)
	if !same(now, r.held) {
		m.tell(c, r.held, now)
		r.since = metav1.Now()
	}
	m.tellMessage(c, r, now)
	r.held, r.claim = now, c
	return r
}

// textEvery is the shortest time between two updates for another message alone: some drivers have
// counters in messages.
const textEvery = 10 * time.Minute

// write writes the conditions into the status of the claim, unless the status has them or the API
// server drops them. Conditions of the status Unknown are left out while the API server rejects
// them.
func (m *Monitor) write(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory) error {
	list, now := r.held, time.Now()
	if !m.unknown.writable(now) {
		list = known(list)
	}
	err := m.writeList(ctx, c, r, list)
	if apierrors.IsInvalid(err) && slices.ContainsFunc(list, isUnknown) {
		err = m.writeList(ctx, c, r, known(list))
		if err == nil && m.unknown.learn(false, now) { // otherwise it may be another claim of that name
			klog.FromContext(ctx).Info("The API server does not accept the status Unknown of a condition: events and "+
				"metrics have it", "nextTry", fieldRetry)
		}
	}
	if err != nil {
		m.metrics.writeFailures.Inc()
		return fmt.Errorf("write the health of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}

func (m *Monitor) writeList(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory,
	list []v1.VolumeHealthCondition) error {
	stored, now := r.stored(c), time.Now()
	switch {
	case slices.Equal(stored, list):
		return nil
	case same(stored, list) && now.Before(r.messageWritten.Add(textEvery)):
		return nil
	case c.Status.HealthStatus == nil && !m.field.writable(now):
		return nil
	}
	kept, err := m.patch(ctx, c, r.since, list)
	if err != nil {
		return err
	}
	m.learn(ctx, c, r, list, kept)
	r.messageWritten = now
	return nil
}

// learn records the result of a write. Only a claim without the field shows whether the API server
// has it: with the gate off, the server keeps a field that was set before.
func (m *Monitor) learn(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory, list []v1.VolumeHealthCondition,
	kept bool) {
	if kept || len(list) == 0 {
		r.written, r.atVersion = list, c.ResourceVersion
	}
	if c.Status.HealthStatus != nil || len(list) == 0 {
		return
	}
	switch log := klog.FromContext(ctx); {
	case !m.field.learn(kept, time.Now()):
	case kept:
		log.Info("The API server keeps status.healthStatus of claims")
	default:
		log.Info("The API server drops status.healthStatus of claims: its feature gate CSIVolumeHealth is off, or it "+
			"is older than 1.37. Events and metrics say the same", "nextTry", fieldRetry)
	}
}

// healthPatch is a JSON merge patch, which replaces the list of conditions. A strategic merge patch
// would merge two conditions of the same status, as the status is the key. A nil health removes the
// field: kubectl checks its presence.
type healthPatch struct {
	Metadata struct {
		UID apitypes.UID `json:"uid"` // the API server rejects another claim of the same name
	} `json:"metadata"`
	Status struct {
		Health *v1.VolumeHealthStatus `json:"healthStatus"`
	} `json:"status"`
}

// patch writes the conditions and reports whether the API server kept them. A missing claim is no
// error.
func (m *Monitor) patch(ctx context.Context, c *v1.PersistentVolumeClaim, since metav1.Time,
	list []v1.VolumeHealthCondition) (kept bool, err error) {
	var p healthPatch
	p.Metadata.UID = c.UID
	if len(list) > 0 {
		p.Status.Health = &v1.VolumeHealthStatus{HealthConditions: list, LastTransitionTime: since}
	}
	body, err := json.Marshal(p)
	if err != nil {
		return false, err
	}
	// An API server before 1.37 does not know the field, and would send a warning with every
	// response.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	got, err := m.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, apitypes.MergePatchType, body,
		options, "status")
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	}
	return got.Status.HealthStatus != nil, nil
}

// field tracks whether the API server keeps status.healthStatus. No request tells it: without the
// feature gate, or before 1.37, the server drops the field silently, and the response to a write
// lacks it.
type field struct {
	mu      sync.Mutex
	known   bool
	dropped bool
	retry   time.Time
}

// fieldRetry is the pause after a dropped write. The gate may be turned on meanwhile.
const fieldRetry = 10 * time.Minute

func (f *field) writable(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !now.Before(f.retry)
}

// learn records the result of a write and reports whether it is a change.
func (f *field) learn(kept bool, now time.Time) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	news = !f.known || f.dropped == kept
	f.known, f.dropped, f.retry = true, !kept, time.Time{}
	if !kept {
		f.retry = now.Add(fieldRetry)
	}
	return news
}

// failures are the errors of a round. The first few are kept: without an API server there are
// thousands.
type failures struct {
	mu    sync.Mutex
	first []error
	more  int
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
	case len(f.first) < 3:
		f.first = append(f.first, err)
	default:
		f.more++
	}
}

func (f *failures) error() error {
	if f.more == 0 {
		return errors.Join(f.first...)
	}
	return errors.Join(append(f.first, fmt.Errorf("and %d more", f.more))...)
}
