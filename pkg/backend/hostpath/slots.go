package hostpath

import (
	"github.com/causeway-csi/causeway/internal/fair"
)

// slots are the limited resources of a node, shared fairly among namespaces and volumes.
type slots struct {
	copies      *fair.Slots // of data; the disk limits them
	pointInTime *fair.Slots // copies at a point in time, under a freeze if a filesystem is mounted; "cut" in metrics
	formats     *fair.Slots // runs of mkfs, and of the programs that change a UUID
}

// Kinds of jobs in slots.
const (
	kindSnapshot = "snapshot"
	kindClone    = "clone"
	kindRestore  = "restore"
	kindGroup    = "group"
	kindFormat   = "format"
	kindUUID     = "uuid"
	kindCheck    = "check"
)

// newSlots returns the slots of a node. More copies at a time would only slow down each copy. Eight
// slots for programs leave a node with two cores time for its calls.
func newSlots() slots {
	return slots{
		copies:      fair.New(fair.Limits{Slots: 4, Tenant: 2, Kind: 3}),
		pointInTime: fair.New(fair.Limits{Slots: 4, Tenant: 2, Kind: 3}),
		formats:     fair.New(fair.Limits{Slots: 8, Tenant: 4, Kind: 7}),
	}
}
