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

// memory is what the monitor remembers of a claim whose volume isn't well.
type memory struct {
	// held is what the volume has as far as anybody knows, and what events have said.
	held []v1.VolumeHealthCondition
	// since is when the present set of statuses and reasons began.
	since metav1.Time
	// written is what was put into the claim's status when the cache had it at this version, until the cache has it too.
	written   []v1.VolumeHealthCondition
	atVersion string
	// texted is when a message was last written.
	texted time.Time
	// told is the last message of a VolumeCondition in an event, and toldAt the time of the event.
	told   string
	toldAt time.Time
	// claim is for metrics.
	claim *v1.PersistentVolumeClaim
}

// memoryOf returns what is remembered of a claim, and after a restart what its status says.
func (m *Monitor) memoryOf(c *v1.PersistentVolumeClaim) *memory {
	if r := m.memories[c.UID]; r != nil {
		return r
	}
	r := &memory{}
	if s := c.Status.HealthStatus; s != nil {
		r.held, r.since = normal(s.HealthConditions), s.LastTransitionTime
		if i := slices.IndexFunc(r.held, isVolumeCondition); i >= 0 {
			r.told = r.held[i].Message
		}
	}
	return r
}

// stored is what the claim's status has at the API server.
func (r *memory) stored(c *v1.PersistentVolumeClaim) []v1.VolumeHealthCondition {
	switch {
	case r.atVersion != "" && r.atVersion == c.ResourceVersion:
		return r.written
	case c.Status.HealthStatus == nil:
		return nil
	}
	return normal(c.Status.HealthStatus.HealthConditions)
}

// settle says what is new to everybody. Its errors are of claims that couldn't be written.
func (m *Monitor) settle(ctx context.Context, targets map[string][]target, answers map[string]answer) error {
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

// update brings a claim's memory up to date, and says by events what changed.
func (m *Monitor) update(c *v1.PersistentVolumeClaim, a answer) *memory {
	r := m.memoryOf(c)
	now := a.over(r.held)
	if !same(now, r.held) {
		m.tell(c, r.held, now)
		r.since = metav1.NewTime(m.now())
	}
	m.tellMessage(c, r, now)
	r.held, r.claim = now, c
	return r
}

// textEvery is the shortest time between two updates for another message alone: some drivers have
// counters in messages.
const textEvery = 10 * time.Minute

// write puts what is known into the claim's status, unless that has it already or the API server would drop it.
func (m *Monitor) write(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory) error {
	stored, now := r.stored(c), m.now()
	switch {
	case slices.Equal(stored, r.held):
		return nil
	case same(stored, r.held) && now.Before(r.texted.Add(textEvery)):
		return nil
	case c.Status.HealthStatus == nil && !m.field.writable(now):
		return nil
	}
	kept, err := m.patch(ctx, c, r)
	if err != nil {
		return err
	}
	m.learn(ctx, c, r, kept)
	r.texted = now
	return nil
}

// learn remembers what became of a write. Whether the field exists shows only where it wasn't set: where it was, the API
// server keeps it with the gate off, too.
func (m *Monitor) learn(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory, kept bool) {
	if kept || len(r.held) == 0 {
		r.written, r.atVersion = r.held, c.ResourceVersion
	}
	if c.Status.HealthStatus != nil || len(r.held) == 0 {
		return
	}
	switch log := klog.FromContext(ctx); {
	case !m.field.learn(kept, m.now()):
	case kept:
		log.Info("The API server keeps status.healthStatus of claims")
	default:
		log.Info("The API server drops status.healthStatus of claims: its feature gate CSIVolumeHealth is off, or it is older than 1.37. Events and metrics say the same", "nextTry", fieldRetry)
	}
}

// healthPatch is a JSON merge patch, which replaces the list of conditions. In a strategic one two of the same status would
// become one, as its key is the status alone. A nil health removes the field: kubectl and others look for its presence.
type healthPatch struct {
	Metadata struct {
		UID apitypes.UID `json:"uid"` // refuses another claim of the same name
	} `json:"metadata"`
	Status struct {
		Health *v1.VolumeHealthStatus `json:"healthStatus"`
	} `json:"status"`
}

// patch writes what is known and reports whether the API server kept it. A claim that is gone is no error.
func (m *Monitor) patch(ctx context.Context, c *v1.PersistentVolumeClaim, r *memory) (kept bool, err error) {
	var p healthPatch
	p.Metadata.UID = c.UID
	if len(r.held) > 0 {
		p.Status.Health = &v1.VolumeHealthStatus{HealthConditions: r.held, LastTransitionTime: r.since}
	}
	body, err := json.Marshal(p)
	if err != nil {
		return false, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	// An API server before 1.37 doesn't know the field, and would warn of it in every answer.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	got, err := m.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, apitypes.MergePatchType, body, options, "status")
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		m.metrics.writeFailures.Inc()
		return false, fmt.Errorf("write the health of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return got.Status.HealthStatus != nil, nil
}

// field is whether the API server keeps status.healthStatus. There is no way to ask: without the feature gate, or before 1.37,
// it drops the field silently, and the answer to a write lacks it.
type field struct {
	mu      sync.Mutex
	known   bool
	dropped bool
	retry   time.Time
}

// fieldRetry is how long nothing is written after a write was dropped. The gate may be turned on meanwhile.
const fieldRetry = 10 * time.Minute

func (f *field) writable(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !now.Before(f.retry)
}

// learn takes what became of a write and reports whether that is news.
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

// failures are the errors of a round: the first few in full, as one API server that is away makes thousands.
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
