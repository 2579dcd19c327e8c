package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/peer"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// place is an address at which a node is to be found.
type place struct {
	address string
	cancel  context.CancelFunc
	node    *node     // who answers there, or nil
	why     error     // nobody does
	last    string    // ID of who was there last: for messages only, as a restart forgets it
	told    time.Time // when the operator heard of it
}

// gone is a node whose address isn't known any more: what it was, and since when. It may be between two pods of an update,
// and then a list without it would be short.
type gone struct {
	address string
	since   time.Time
}

// Why no node answers at a place, beside what the network says.
var (
	errNoAddress = errors.New("it has no address now")
	errNotAsked  = errors.New("it was not asked yet")
)

// node is a driver that has said who it is, on one connection. If that ends, another one has to be asked anew: by then
// its address may be another node's.
type node struct {
	id       string   // as NodeGetInfo has it
	digests  []string // that its IDs may carry
	segments map[string]string
	address  string
	conn     *connection
	calls    atomic.Int64 // in flight
}

func (n *node) String() string { return fmt.Sprintf("%s (%s)", n.id, n.address) }

// Run finds nodes and keeps connections to them until ctx is done.
func (r *Router) Run(ctx context.Context) {
	defer r.end()
	defer r.keeping.Wait()
	for {
		r.panicked(guard.Do(func() error { r.find(ctx); return nil }))
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		case <-r.soon:
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookSoon): // many may be lost at the same time
			}
		}
	}
}

// panicked reports err if it is that of a background task that panicked.
func (r *Router) panicked(err error) {
	if err != nil {
		r.cfg.Report("a background task ended with a panic", err)
	}
}

// find takes up addresses that are new and drops those that are gone.
func (r *Router) find(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, meetLimit)
	defer cancel()
	addresses, err := r.cfg.Peers(limit)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was := r.looked; err != nil && (was == nil || was.Error() != err.Error()) {
		r.cfg.Report("the addresses of the nodes can't be found; the last ones that were known stay", err)
	}
	r.looked = err
	if err == nil {
		r.known = true
		r.take(ctx, addresses)
	}
	r.show()
}

// take begins to keep addresses that are new, and ends it for the others. The caller holds mu.
func (r *Router) take(ctx context.Context, addresses []string) {
	there := map[string]bool{}
	for _, address := range addresses {
		there[address] = true
	}
	for address, p := range r.places {
		if !there[address] {
			p.cancel()
			delete(r.places, address)
			r.leave(p)
		}
	}
	maps.DeleteFunc(r.gone, func(_ string, g gone) bool { return time.Since(g.since) > goneFor })
	maps.DeleteFunc(r.lastSeen, func(_ string, last time.Time) bool { return time.Since(last) > silentFor }) // as if never seen
	for address := range there {
		if r.places[address] != nil {
			continue
		}
		life, cancel := context.WithCancel(ctx)
		p := &place{address: address, cancel: cancel, why: errNotAsked}
		r.places[address] = p
		r.keeping.Go(func() {
			guard.Keep(life, func(err error) {
				r.panicked(err)
				r.met(p, nil, nil, err)
			}, func() { r.keep(life, p) })
		})
	}
}

// leave notes that who was at a place last has no address now, as far as is known. The caller holds mu.
func (r *Router) leave(p *place) {
	if p.last != "" {
		r.gone[p.last] = gone{p.address, time.Now()}
		r.metrics.forget(p.last)
	}
}

// keep holds a connection to who is at a place, until ctx is done.
func (r *Router) keep(ctx context.Context, p *place) {
	var current *node
	defer func() { r.met(p, current, nil, context.Canceled) }()
	pause := time.Duration(0) // after a node that didn't last
	for wait := againFirst; ctx.Err() == nil; {
		n, err := r.meet(ctx, p.address)
		if ctx.Err() != nil {
			retire(n)
			return
		}
		if err != nil && current != nil && !current.conn.lost() {
			err = nil // it was to be renewed, and does as it is
			n = current
		}
		r.met(p, current, n, err)
		if current = n; err != nil {
			if !sleep(ctx, wait/2+rand.N(wait/2)) {
				return
			}
			wait = min(2*wait, againLast)
			continue
		}
		wait = againFirst
		began := time.Now()
		if lost := r.hold(ctx, n); lost != nil {
			r.met(p, current, nil, lost)
			current = nil
			if time.Since(began) > againLast {
				pause = 0
			}
			sleep(ctx, pause)
			pause = min(pause+againFirst, lookSoon)
		}
	}
}

// hold waits until a node is lost, and returns why; or until it is time for a new connection, and returns nil.
func (r *Router) hold(ctx context.Context, n *node) error {
	renew, cancel := context.WithTimeout(ctx, renewEvery/2+rand.N(renewEvery/2))
	defer cancel()
	if n.conn.WaitForStateChange(renew, connectivity.Ready) {
		return errLost
	}
	return nil
}

// met notes who is at a place instead of was, or why nobody is.
func (r *Router) met(p *place, was, is *node, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was != is {
		retire(was)
	}
	if is == nil && (p.node != nil || p.why == nil) {
		select {
		case r.soon <- struct{}{}:
		default:
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		r.tell(p, err)
	}
	if was != nil {
		r.lastSeen[was.segments[r.cfg.TopologyKey]] = time.Now()
	}
	if is != nil && p.node == nil && !p.told.IsZero() {
		p.told = time.Time{}
		r.cfg.Report(is.String()+" answers", nil)
	}
	p.node, p.why = is, err
	if is != nil {
		if p.last != is.id { // its address is another one's now
			r.leave(p)
		}
		p.last = is.id
	}
	r.show()
}

// show makes who answers now what calls see, and tells the operator of nodes that are there twice when it begins. The
// caller holds mu.
func (r *Router) show() {
	was, is := r.view.Load(), r.look()
	for key, where := range is.twice {
		if was.twice[key] == nil {
			r.cfg.Report("none of them is used", fmt.Errorf("more than one says that it is the same node: %s", strings.Join(where, ", ")))
		}
	}
	r.view.Store(is)
}

// tell tells the operator why no node answers at a place: when it begins, and then once a minute if it is for another reason.
// The caller holds mu.
func (r *Router) tell(p *place, why error) {
	if !p.told.IsZero() && (time.Since(p.told) < tellEvery || p.node == nil && p.why.Error() == why.Error()) {
		return
	}
	p.told = time.Now()
	r.cfg.Report("no node answers at "+p.absent().String(), why)
}

// absent returns what to say of a place where no node answers.
func (p *place) absent() absent { return absent{p.address, p.last, p.why} }

// meet connects to an address and asks who is there.
func (r *Router) meet(ctx context.Context, address string) (n *node, err error) {
	raw, err := (&net.Dialer{Timeout: meetLimit}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	select { // all nodes at once would keep each other from being heard in time
	case r.meeting <- struct{}{}:
		defer func() { <-r.meeting }()
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), raw.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, meetLimit)
	defer cancel()
	conn, err := r.connect(raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	defer func() {
		if err != nil {
			conn.close()
		}
	}()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for its driver: %w", err)
	}
	if info.GetName() != r.cfg.Name {
		return nil, fmt.Errorf("it is the driver %.64q, and not %s", info.GetName(), r.cfg.Name)
	}
	var from peer.Peer
	who, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.Peer(&from))
	if err != nil {
		return nil, fmt.Errorf("ask which node it is: %w", err)
	}
	if err := r.believe(who, &from); err != nil {
		return nil, err
	}
	return &node{
		id: who.GetNodeId(), digests: volumeid.NodeDigests(who.GetNodeId()), segments: who.GetAccessibleTopology().GetSegments(),
		address: address, conn: conn,
	}, nil
}

// believe returns an error for one who isn't the node that it says it is.
func (r *Router) believe(who *csi.NodeGetInfoResponse, from *peer.Peer) error {
	id := who.GetNodeId()
	if err := volumeid.CheckNode(id); err != nil {
		return fmt.Errorf("it says that it is the node %.64q: %w", id, err)
	}
	if segment := who.GetAccessibleTopology().GetSegments()[r.cfg.TopologyKey]; segment != volumeid.Segment(id) {
		return fmt.Errorf("it says that it is the node %s, with the topology %s=%.64q, which is another's", id, r.cfg.TopologyKey, segment)
	}
	if r.cfg.Names == nil {
		return nil
	}
	names := r.cfg.Names(from.AuthInfo)
	if !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, id) }) {
		return fmt.Errorf("it says that it is the node %s, and its certificate is for %.200q", id, names)
	}
	return nil
}

// retire closes a connection when no call uses it any more. One that has just been looked up may be about to.
func retire(n *node) {
	if n == nil {
		return
	}
	var try func()
	try = func() {
		if n.calls.Load() == 0 {
			n.conn.close()
			return
		}
		time.AfterFunc(time.Second, try)
	}
	time.AfterFunc(time.Second, try)
}

// sleep waits, and reports whether ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
