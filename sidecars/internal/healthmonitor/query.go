package healthmonitor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// answer is the result of a round for a volume. The zero answer keeps the conditions of before: a
// failed call is no recovery. KEP-1432, Reconciliation contract.
type answer struct {
	conditions []v1.VolumeHealthCondition
	whole      bool // conditions has all conditions; otherwise they add to those of before
}

// over returns the present conditions; held are those of before.
func (a answer) over(held []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	if a.whole {
		return a.conditions
	}
	return normal(slices.Concat(held, a.conditions))
}

// queryAll returns the answers of the driver by volume ID. With an error, the list failed; the
// answers are then those of the single volumes.
func (m *Monitor) queryAll(ctx context.Context, targets map[string][]target) (map[string]answer, error) {
	m.unreadable = &failures{}
	if !m.source.lists {
		return m.queryEach(ctx, targets, slices.Sorted(maps.Keys(targets))), nil
	}
	found, err := m.list(ctx, targets)
	switch {
	case err == nil:
		maps.Copy(found, m.queryEach(ctx, targets, m.absent(targets, found)))
		return found, nil
	case m.source.gets:
		found = m.queryEach(ctx, targets, slices.Sorted(maps.Keys(targets)))
	default:
		found = nil
	}
	m.metrics.listFailures.WithLabelValues(status.Code(err).String()).Inc()
	return found, fmt.Errorf("list the health of all volumes: %w", err)
}

// absent returns the volumes to query singly after a list. A volume that a list of abnormal
// volumes lacks is healthy if it was healthy before. For others the list proves nothing, since
// pages may miss a volume: CSI spec v1.13, ControllerListVolumeHealth.
func (m *Monitor) absent(targets map[string][]target, found map[string]answer) []string {
	var ids []string
	for id, ts := range targets {
		if _, ok := found[id]; ok {
			continue
		}
		if m.source.listsHealthy || slices.ContainsFunc(ts,
			func(t target) bool { return len(m.memoryOf(t.claim).held) > 0 }) {
			ids = append(ids, id)
			continue
		}
		found[id] = answer{whole: true}
	}
	if !m.source.gets {
		return nil
	}
	slices.Sort(ids)
	return ids
}

// Bounds for a driver whose paging never ends.
const (
	listTries = 3
	maxPages  = 10_000
)

var errToken = errors.New("a paging token went bad")

// list lists all abnormal volumes, and begins anew after an invalid token.
func (m *Monitor) list(ctx context.Context, wanted map[string][]target) (found map[string]answer, err error) {
	for range listTries {
		if found, err = m.pages(ctx, wanted); !errors.Is(err, errToken) {
			break
		}
	}
	return found, err
}

// pages reads a list. If a volume occurs twice, the later report counts, as it is newer.
func (m *Monitor) pages(ctx context.Context, wanted map[string][]target) (map[string]answer, error) {
	found, seen, token := map[string]answer{}, map[string]bool{}, ""
	for {
		reports, next, err := m.page(ctx, token)
		switch {
		case err != nil && token != "" && status.Code(err) == codes.Aborted:
			return nil, fmt.Errorf("%w: %w", errToken, err)
		case err != nil:
			return nil, err
		}
		m.keepReports(reports, wanted, found)
		if token = next; token == "" {
			return found, nil
		}
		if seen[token] || len(seen) >= maxPages {
			return nil, fmt.Errorf("no end after %d pages: the driver repeats a paging token, or has ever new ones",
				len(seen)+1)
		}
		seen[token] = true
	}
}

func (m *Monitor) page(ctx context.Context, token string) ([]report, string, error) {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	return m.source.page(ctx, int32(m.PageSize), token)
}

// keepReports keeps the reports of volumes with a claim. Others would cost memory.
func (m *Monitor) keepReports(reports []report, wanted map[string][]target, found map[string]answer) {
	for _, r := range reports {
		if _, ok := wanted[r.id]; !ok {
			continue
		}
		if r.err != nil {
			delete(found, r.id)
			if !m.source.gets { // otherwise a query for this volume follows
				m.cannotRead(r.id, r.err)
			}
			continue
		}
		found[r.id] = m.answer(r)
	}
}

// answer returns the answer of a report.
func (m *Monitor) answer(r report) answer {
	m.metrics.unknown.Add(float64(r.unknown))
	if !m.UnknownConditions {
		r.conditions = known(r.conditions)
	}
	return answer{conditions: r.conditions, whole: true}
}

// cannotRead counts and logs an invalid report. The conditions of the volume stay.
func (m *Monitor) cannotRead(id string, err error) {
	m.metrics.getFailures.WithLabelValues(codes.Unknown.String()).Inc()
	m.unreadable.add(fmt.Errorf("invalid answer for volume %q: %w", printable(id, 128), err))
}

// inquiry queries volumes singly.
type inquiry struct {
	*Monitor
	targets map[string][]target
	alive   func() bool // whether the driver answers; called once a round at most
	giveUp  context.CancelFunc

	mu      sync.Mutex
	answers map[string]answer
	trouble map[string]trouble // for the next round
}

// queryEach queries the volumes singly, with several workers.
func (m *Monitor) queryEach(ctx context.Context, targets map[string][]target, ids []string) map[string]answer {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	q := &inquiry{
		Monitor: m, targets: targets, alive: sync.OnceValue(func() bool { return m.probe(ctx) }), giveUp: giveUp,
		answers: map[string]answer{}, trouble: map[string]trouble{},
	}
	var group errgroup.Group
	group.SetLimit(m.Workers)
	for _, id := range ids {
		group.Go(func() error { q.query(ctx, id); return nil })
	}
	_ = group.Wait()
	m.trouble = q.trouble // drops volumes that were not queried: the list had them, or they are gone
	return q.answers
}

// probe reports whether the driver answers at all.
func (m *Monitor) probe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	_, err := m.identity.Probe(ctx, &csi.ProbeRequest{})
	return err == nil
}

// query queries a volume, unless its pause has not ended or the driver does not answer.
func (q *inquiry) query(ctx context.Context, id string) {
	if before := q.Monitor.trouble[id]; time.Now().Before(before.again) {
		q.keep(id, answer{}, before)
		return
	}
	if ctx.Err() != nil {
		return
	}
	r, err := q.get(ctx, id)
	switch {
	case err != nil:
		q.metrics.getFailures.WithLabelValues(status.Code(err).String()).Inc()
		q.failed(id, err)
	case r.err != nil:
		q.cannotRead(id, r.err)
	default:
		q.keep(id, q.answer(r), trouble{})
	}
}

// get returns the report for a volume. A report for another volume is invalid.
func (m *Monitor) get(ctx context.Context, id string) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	r, err := m.source.get(ctx, id)
	if err == nil && r.id != id {
		r.err = fmt.Errorf("it is for volume %q", printable(r.id, 128))
	}
	return r, err
}

func (q *inquiry) keep(id string, a answer, t trouble) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers[id] = a
	if t.times > 0 {
		q.trouble[id] = t
	}
}

// trouble counts the failed queries of a volume in a row.
type trouble struct {
	reason string // of the condition
	times  int
	again  time.Time // time of the next query
}

// Reasons of conditions that the monitor makes.
const (
	reasonNoAnswer = "NoAnswer"
	reasonNotFound = "VolumeNotFound"
)

// twice is the number of rounds in a row in which a query must fail before it is reported. A
// restart of the driver or of a node must not make claims inaccessible, and a volume may be deleted
// while the cache still has it.
const twice = 2

// failed handles a failed query of a volume. An unknown code keeps the conditions.
func (q *inquiry) failed(id string, err error) {
	var reason, words string
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		if !q.alive() {
			q.giveUp() // the driver does not answer, which says nothing about volumes
			return
		}
		reason, words = reasonNoAnswer, "the CSI driver works, but has no answer for this volume, as if its node or "+
			"storage were away: "
	case codes.NotFound:
		if slices.ContainsFunc(q.targets[id], target.deleting) {
			return // as expected
		}
		if !slices.ContainsFunc(q.targets[id], target.provisioned) {
			return // the volume of an administrator, which only nodes know
		}
		reason, words = reasonNotFound, "to the CSI driver there is no such volume: it was deleted outside of "+
			"Kubernetes, or the PV's volumeHandle is wrong: "
	default:
		return
	}
	t := q.again(id, reason)
	if t.times < twice {
		q.keep(id, answer{}, t)
		return
	}
	// NOT_FOUND is not DATA_LOSS: the driver has a status for lost data. A wrong handle or a root
	// that is not mounted is NOT_FOUND, too, and operators act on DataLoss.
	q.keep(id, answer{conditions: []v1.VolumeHealthCondition{condition(v1.VolumeHealthInaccessible, reason,
		words+status.Convert(err).Message())}}, t)
}

// again counts a further failure. A volume that is not found is queried at growing intervals: CSI
// spec v1.13, ControllerGetVolumeHealth Errors.
func (q *inquiry) again(id, reason string) trouble {
	t := q.Monitor.trouble[id]
	if t.reason != reason {
		t = trouble{reason: reason}
	}
	t.times++
	if reason == reasonNotFound {
		t.again = time.Now().Add(min(q.GetInterval<<min(t.times-1, 10), maxPause))
	}
	return t
}

// maxPause is the longest pause after NOT_FOUND. A volume that returns counts as inaccessible for
// so long, and for a round more.
const maxPause = 15 * time.Minute
