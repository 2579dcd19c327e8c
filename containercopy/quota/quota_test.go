package quota

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func take(t *testing.T, s *Slots, uid string) *Slot {
	t.Helper()
	slot, err := s.TakeSlot(uid, "ns/"+uid)
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

func busy(t *testing.T, s *Slots, uid string, want Reason) {
	t.Helper()
	slot, err := s.TakeSlot(uid, "ns/"+uid)
	var b *Busy
	if slot != nil || !errors.Is(err, ErrBusy) || !errors.As(err, &b) || b.Reason != want ||
		!strings.Contains(err.Error(), "ns/"+uid) || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("TakeSlot(%s) = %v, %v, want busy: %s", uid, slot, err, want)
	}
}

func wantState(t *testing.T, s *Slots, copies, stuck int, pod, node int64) {
	t.Helper()
	got := s.State()
	if got.Copies != copies || got.Stuck != stuck || got.Rejected[Pod] != pod || got.Rejected[Node] != node {
		t.Errorf("State = %+v, want %d copies, %d stuck, rejected %d and %d", got, copies, stuck, pod, node)
	}
}

// TestTheThirdCopyOfAPodIsRejected, and one of another pod is not.
func TestTheThirdCopyOfAPodIsRejected(t *testing.T) {
	s := New(2, 0)
	first := take(t, s, "a")
	take(t, s, "a")
	busy(t, s, "a", Pod)
	other := take(t, s, "b")
	first.Release()
	first.Release() // also by a defer
	take(t, s, "a")
	busy(t, s, "a", Pod)
	wantState(t, s, 3, 0, 2, 0)
	other.Release()
	wantState(t, s, 2, 0, 2, 0)
}

// TestAStuckWorkerKeepsItsSlot: one pod with a volume that hangs does not take the slots of others.
func TestAStuckWorkerKeepsItsSlot(t *testing.T) {
	s := New(1, 2)
	first := take(t, s, "a")
	first.Stuck()
	first.Stuck()
	busy(t, s, "a", Pod)
	second := take(t, s, "b")
	busy(t, s, "c", Node)
	wantState(t, s, 1, 1, 1, 1)
	second.Release()
	third := take(t, s, "b")
	second.Stuck() // after the result of its copy
	second.Stuck()
	wantState(t, s, 1, 2, 1, 1)
	busy(t, s, "b", Pod)
	second.Release()
	second.Release()
	first.Release()
	first.Release()
	wantState(t, s, 1, 0, 2, 1)
	take(t, s, "a")
	third.Release()
	wantState(t, s, 1, 0, 2, 1)
}

func TestWithoutLimits(t *testing.T) {
	s := New(0, 0)
	for range 1000 {
		take(t, s, "a")
	}
	wantState(t, s, 1000, 0, 0, 0)
}

// TestManyCallers never have more slots than there are, and leave no count.
func TestManyCallers(t *testing.T) {
	s := New(3, 5)
	var all, ofA atomic.Int64
	var group sync.WaitGroup
	for i := range 16 {
		uid := string(rune('a' + i%4))
		group.Go(func() {
			for range 500 {
				slot, err := s.TakeSlot(uid, uid)
				if err != nil {
					continue
				}
				if n := all.Add(1); n > 5 {
					t.Errorf("%d copies", n)
				}
				if uid == "a" {
					if n := ofA.Add(1); n > 3 {
						t.Errorf("%d copies of a pod", n)
					}
					ofA.Add(-1)
				}
				all.Add(-1)
				slot.Release()
			}
		})
	}
	group.Wait()
	if got := s.State(); got.Copies != 0 || len(s.pods) != 0 {
		t.Errorf("left: %+v, pods %v", got, s.pods)
	}
}

// FuzzSlots: after any order of calls, no limit is exceeded, a copy is rejected only at a limit,
// and all slots are free at the end.
func FuzzSlots(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 10, 20, 30})
	f.Add([]byte{0, 1, 2, 0, 20, 21, 30, 31, 0})
	f.Fuzz(func(t *testing.T, calls []byte) {
		const perPod, perNode = 2, 4
		type held struct {
			slot  *Slot
			pod   string
			stuck bool
		}
		s := New(perPod, perNode)
		var all []*held
		count := func() (copies, stuck int, pods map[string]int) {
			pods = map[string]int{}
			for _, h := range all {
				if pods[h.pod]++; h.stuck {
					stuck++
				} else {
					copies++
				}
			}
			return copies, stuck, pods
		}
		for _, call := range calls {
			copies, stuck, pods := count()
			if got := s.State(); got.Copies != copies || got.Stuck != stuck {
				t.Fatalf("%+v, want %d copies, %d stuck", got, copies, stuck)
			}
			if call < 10 {
				pod := string('a' + rune(call%3))
				slot, err := s.TakeSlot(pod, "ns/"+pod)
				if full := pods[pod] == perPod || copies+stuck == perNode; full != (err != nil) {
					t.Fatalf("Take = %v with %d copies, %d stuck, pods %v", err, copies, stuck, pods)
				}
				if err == nil {
					all = append(all, &held{slot: slot, pod: pod})
				}
				continue
			}
			if len(all) == 0 {
				continue
			}
			i := int(call) % len(all)
			h := all[i]
			if call%2 == 0 {
				h.slot.Release()
				h.slot.Release() // no effect
				all = slices.Delete(all, i, i+1)
			} else {
				h.slot.Stuck()
				h.stuck = true
			}
		}
		for _, h := range all {
			h.slot.Release()
		}
		if got := s.State(); got.Copies != 0 || got.Stuck != 0 || len(s.pods) != 0 {
			t.Errorf("at the end: %+v, %v", got, s.pods)
		}
	})
}
