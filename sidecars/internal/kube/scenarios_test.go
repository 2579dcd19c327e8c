package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// pair starts two replicas, of which the first leads.
func (w *world) pair() (leader, standby *proc) {
	w.Helper()
	leader = w.start("leader", single)
	time.Sleep(takeover)
	standby = w.start("standby", single)
	time.Sleep(takeover)
	w.isDoneBy("leader")
	return leader, standby
}

func TestALeaderIsReplaced(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults func(leader *proc)
		within time.Duration
		want   error // of the leader; nil: it ends with success
	}{
		{"told to end", func(p *proc) { p.cancel() }, 3 * retryPeriod, nil},
		{"killed", func(p *proc) { p.exit() }, takeover, nil},
		{"no request arrives", func(p *proc) { p.link.set(faults{losesCalls: true}) }, takeover, sidecar.ErrLost},
		{"no answer arrives", func(p *proc) { p.link.set(faults{losesAnswers: true}) },
			takeover + renewDeadline, sidecar.ErrLost},
		{"requests take longer than a lease", func(p *proc) { p.link.set(faults{latency: 2 * leaseDuration}) },
			takeover + 2*leaseDuration, sidecar.ErrLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				leader, standby := w.pair()
				c.faults(leader)
				time.Sleep(c.within)
				w.isDoneBy("standby")
				if err := leader.ends(); !errors.Is(err, c.want) {
					t.Errorf("the leader ended with %v, want %v", err, c.want)
				}
				time.Sleep(3 * leaseDuration)
				w.isDoneBy("standby")
				standby.terminate()
				w.apart()
				if holder := w.server.holder(combined(simulated)); holder != "" {
					t.Errorf("%s still holds the lease", holder)
				}
			})
		})
	}
}

// A stopped process finds a renewal answered that is older than its lease.
func TestAStoppedLeaderDoesNothingMore(t *testing.T) {
	for stopped := leaseDuration + time.Second; stopped < leaseDuration+3*retryPeriod; stopped += time.Second {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			leader, standby := w.pair()
			leader.link.set(faults{latency: time.Second}) // so that a request is under way at the stop
			time.Sleep(leaseDuration)
			leader.stop()
			time.Sleep(stopped)
			leader.resume()
			if err := leader.ends(); !errors.Is(err, sidecar.ErrLost) {
				t.Errorf("stopped for %v, the leader ended with %v", stopped, err)
			}
			time.Sleep(takeover)
			w.isDoneBy("standby")
			standby.terminate()
			w.apart()
		})
	}
}

// A stop for less than a lease changes nothing.
func TestALeaderThatWasStoppedForAMomentLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leader, standby := w.pair()
		for range 10 {
			leader.stop()
			time.Sleep(leaseDuration - 2*retryPeriod)
			leader.resume()
			time.Sleep(leaseDuration)
			w.isDoneBy("leader")
		}
		standby.terminate()
		leader.terminate()
		w.apart()
	})
}

// A renewal and the pause before it fit into a lease.
func TestALeaderWithLateRenewalsLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leader, standby := w.pair()
		leader.link.set(faults{latency: (leaseDuration - retryPeriod) / 5}) // 4 s for a renewal
		for range 100 {
			time.Sleep(retryPeriod)
			if err := leader.cluster.Leads(); err != nil {
				t.Fatal(err)
			}
		}
		leader.link.set(faults{})
		standby.terminate()
		leader.terminate()
		w.apart()
		if _, worked := w.spans["attacher"]["standby"]; worked {
			t.Error("the other process worked, too")
		}
	})
}

// A leader loses its lease when a request of a renewal gets lost, as client-go sends no other
// before the renew deadline. A process that waits never ends for that reason.
func TestAProcessThatWaitsSurvivesOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leader, standby := w.pair()
		for !leader.isOver() {
			for _, p := range []*proc{leader, standby} {
				p.link.set(faults{losesCalls: true})
			}
			time.Sleep(time.Second)
			for _, p := range []*proc{leader, standby} {
				p.link.set(faults{})
			}
			time.Sleep(silence)
		}
		if err := leader.ends(); !errors.Is(err, sidecar.ErrLost) {
			t.Errorf("the leader ended with %v", err)
		}
		time.Sleep(takeover)
		w.isDoneBy("standby")
		standby.terminate()
		w.apart()
	})
}

// Upstream's sidecars, each in two replicas, are replaced by two replicas of csi-sidecars.
func TestTheWorkMovesFromUpstreamsSidecarsAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var old []*proc
		for _, part := range []string{"attacher", "provisioner"} {
			for n := range 2 {
				old = append(old, w.upstream(fmt.Sprintf("%s-%d", part, n), part))
				time.Sleep(takeover)
			}
		}
		ours := w.start("ours", single)
		time.Sleep(takeover)
		next := w.start("next", single)
		time.Sleep(takeover)
		for _, part := range []string{"attacher", "provisioner"} {
			if name, _ := w.worker(part); !strings.HasPrefix(name, part) {
				t.Errorf("%s works as %s beside an old sidecar", name, part)
			}
		}
		for _, p := range old { // the second replica of each ends later than the first
			p.exit()
			time.Sleep(takeover)
		}
		time.Sleep(takeover)
		w.isDoneBy("ours")
		for _, name := range []string{"attacher-d", "provisioner-d"} {
			if got := w.server.holder(name); got != "ours" {
				t.Errorf("%q has the lease %s during the handover", got, name)
			}
		}
		time.Sleep(ours.cluster.election.handover())
		for _, name := range []string{"attacher-d", "provisioner-d"} {
			if got := w.server.holder(name); got != "" {
				t.Errorf("%q has the lease %s after the handover", got, name)
			}
		}
		next.terminate()
		ours.terminate()
		for _, part := range []string{"attacher", "provisioner"} {
			back := w.upstream("back-"+part, part)
			time.Sleep(takeover)
			if name, since := w.worker(part); name != "back-"+part || since > 2*time.Second {
				t.Errorf("%s worked as %s %v ago", name, part, since)
			}
			back.exit()
			back.ends()
		}
		w.apart()
	})
}

// Upstream's sidecars know no other lease. csi-sidecars finds them at its next look, and ends.
func TestOldSidecarsThatReturnGetTheirWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ours := w.start("ours", single)
		time.Sleep(takeover + standard(single).handover())
		w.isDoneBy("ours")
		old := w.upstream("old", "attacher")
		if err := ours.ends(); err == nil || !strings.Contains(err.Error(), "old has taken the lease attacher-d") {
			t.Errorf("the process ended with %v", err)
		}
		if both := w.overlap(); both > leaseDuration+retryPeriod {
			t.Errorf("two processes worked for %v", both)
		}
		next := w.start("next", single)
		time.Sleep(2 * takeover)
		if name, _ := w.worker("attacher"); name != "old" {
			t.Errorf("%s works as the attacher", name)
		}
		if name, _ := w.worker("provisioner"); name != "next" {
			t.Errorf("%s works as the provisioner", name)
		}
		old.exit()
		old.ends()
		time.Sleep(2 * takeover)
		w.isDoneBy("next")
		next.terminate()
	})
}

// From the single lease to those of upstream, and back.
func TestTheModeOfElectionChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one := w.start("one", single)
		time.Sleep(takeover)
		several := w.start("several", perController)
		time.Sleep(2 * takeover)
		w.isDoneBy("one")
		one.terminate()
		time.Sleep(takeover)
		w.isDoneBy("several")
		again := w.start("again", single)
		if err := several.ends(); err == nil || !strings.Contains(err.Error(), "again has taken the lease") {
			t.Errorf("the process with several leases ended with %v", err)
		}
		time.Sleep(2 * takeover)
		w.isDoneBy("again")
		again.terminate()
		w.apart()
	})
}

// schedule lets random faults happen to three replicas for ten minutes. A process that ends is
// replaced by another, as the kubelet does, with another mode at times.
func (w *world) schedule(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	n := 0
	next := func() *proc {
		n++
		return w.start(fmt.Sprintf("process-%02d", n), []string{single, single, perController}[random.IntN(3)])
	}
	all := []*proc{next(), next(), next()}
	stopped := map[*proc]bool{}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		time.Sleep(time.Duration(random.Int64N(int64(8 * time.Second))))
		i := random.IntN(len(all))
		p := all[i]
		switch f := random.IntN(12); {
		case p.isOver():
			all[i] = next()
		case stopped[p]:
			p.resume()
			delete(stopped, p)
		case f == 0:
			p.stop()
			stopped[p] = true
		case f == 1:
			p.cancel()
		case f == 2:
			p.exit()
		case f == 3:
			p.link.set(faults{losesCalls: true})
		case f == 4:
			p.link.set(faults{losesAnswers: true})
		case f == 5:
			p.link.set(faults{latency: time.Duration(random.Int64N(int64(20 * time.Second)))})
		default:
			p.link.set(faults{latency: time.Duration(random.Int64N(int64(100 * time.Millisecond)))})
		}
	}
	w.heal(all, stopped)
}

// heal ends all faults, and fails unless work is done after a while.
func (w *world) heal(all []*proc, stopped map[*proc]bool) {
	w.Helper()
	for _, p := range all {
		p.link.set(faults{latency: 20 * time.Millisecond})
		if stopped[p] {
			p.resume()
		}
	}
	for round := range 20 {
		if time.Sleep(takeover); round > 3 && w.isDone() {
			break
		}
		for i, p := range all {
			if p.isOver() {
				all[i] = w.start(fmt.Sprintf("process-%02d-%d", round, i), single)
			}
		}
	}
	if !w.isDone() {
		w.Errorf("nobody works: %v", all)
	}
	for _, p := range all {
		p.cancel()
		p.ends()
	}
}

// schedules is the number of random schedules. Each takes a quarter of a second of CPU time.
const schedules = 40

func TestNoTwoProcessesDoTheSameWork(t *testing.T) {
	for seed := range uint64(schedules) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.schedule(seed)
				w.apart()
			})
		})
	}
}
