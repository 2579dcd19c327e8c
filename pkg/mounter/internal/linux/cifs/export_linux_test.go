package cifs

import "github.com/causeway-csi/causeway/internal/fair"

// For the tests of this package with a Host.

type ShareRequest = shareRequest

var ErrNoSlot = errNoSlot
var Run = (*Shares).run
var ShareSlots = shareSlots
var UnmountShareTask = unmountShareTask
var UnmountSlots = unmountSlots
var UsageTask = usageTask

func SlotsOf(sh *Shares) *fair.Slots { return sh.slots }

func UnmountSlotsOf(sh *Shares) *fair.Slots { return sh.unmountSlots }

func IsSilent(sh *Shares, server string) bool { return sh.silentServers.contains(server) }

func SetSilent(sh *Shares, server string) { sh.silentServers.add(server) }
