// Package quota limits the copies of a pod and of a node (KEP-4582, ContainerCopiesPerPod). A copy
// never waits for another: it gets its slot at once, or an error that its caller repeats later.
package quota

import (
	"errors"
	"fmt"
	"sync"
)

// Reason is the limit for which a copy was rejected.
type Reason string

// Reasons.
const (
	Pod  Reason = "pod"
	Node Reason = "node"
)

// ErrBusy is the class of a Busy error.
var ErrBusy = errors.New("too many copies")

// Busy is the error of a copy over a limit.
type Busy struct {
	Reason Reason
	Pod    string // namespace/name
	Limit  int
}

func (b *Busy) Error() string {
	if b.Reason == Node {
		return fmt.Sprintf("too many copies on the node of pod %s (%d), try again later", b.Pod, b.Limit)
	}
	return fmt.Sprintf("too many copies in pod %s (%d), try again later", b.Pod, b.Limit)
}

// Is makes every Busy an ErrBusy.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// Slots are the slots of a node. All methods may be called by many goroutines.
type Slots struct {
	perPod, perNode int // 0: no limit

	mu       sync.Mutex
	pods     map[string]int // copies and stuck workers by the key of the pod
	copies   int
	stuck    int // workers that have outlived their copy
	rejected map[Reason]int64
}

// New returns Slots without copies. A limit of 0 is none.
func New(perPod, perNode int) *Slots {
	return &Slots{perPod: perPod, perNode: perNode, pods: map[string]int{}, rejected: map[Reason]int64{}}
}

// TakeSlot takes a slot for a copy. key is the namespace, name and UID of the pod, so a pod that is
// made again starts without copies; pod is its namespace and name. Errors: Busy.
func (s *Slots) TakeSlot(key, pod string) (*Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var busy *Busy
	switch {
	case s.perPod > 0 && s.pods[key] >= s.perPod:
		busy = &Busy{Pod, pod, s.perPod}
	case s.perNode > 0 && s.copies+s.stuck >= s.perNode:
		busy = &Busy{Node, pod, s.perNode}
	}
	if busy != nil {
		s.rejected[busy.Reason]++
		return nil, busy
	}
	s.pods[key]++
	s.copies++
	return &Slot{slots: s, key: key}, nil
}

// Slot is the slot of a copy.
type Slot struct {
	slots    *Slots
	key      string
	stuck    bool // guarded by slots.mu, as released
	released bool
}

// Release frees the slot. A second call has no effect, except after Stuck.
func (s *Slot) Release() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.released {
		return
	}
	s.released = true
	if s.stuck {
		s.stuck = false
		s.slots.stuck--
	} else {
		s.slots.copies--
	}
	if s.slots.pods[s.key]--; s.slots.pods[s.key] == 0 {
		delete(s.slots.pods, s.key)
	}
}

// Stuck notes that the copy has ended and that its worker, which waits for a filesystem, cannot be
// killed now. The slot counts against the limits of the pod and of the node until Release is called,
// perhaps for the second time: a limit may be exceeded then.
func (s *Slot) Stuck() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.stuck {
		return
	}
	s.stuck = true
	s.slots.stuck++
	if s.released {
		s.released = false
		s.slots.pods[s.key]++
	} else {
		s.slots.copies--
	}
}

// State is the state of Slots, for metrics.
type State struct {
	Copies   int
	Stuck    int
	Rejected map[Reason]int64 // since the start
}

// State returns the present state.
func (s *Slots) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{s.copies, s.stuck, map[Reason]int64{Pod: s.rejected[Pod], Node: s.rejected[Node]}}
}
