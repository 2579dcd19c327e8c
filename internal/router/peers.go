package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

// endpoint is the address of a node.
type endpoint struct {
	address  string
	cancel   context.CancelFunc
	node     *node     // the node that answers, or nil
	err      error     // the reason why no node answers
	last     string    // ID of the last node that answered, for messages only: it is empty after a restart
	since    time.Time // since then no node answers, if node is nil
	reported time.Time // when err was reported
}

// gone is the former address of a node that has no address now. Between the two pods of an update a
// node has none, and a list without its volumes would be wrong.
type gone struct {
	address string
	since   time.Time
}

// Reasons why no node answers at an endpoint, beside errors of the network.
var (
	errNoAddress = errors.New("it has no address now")
	errNotAsked  = errors.New("it was not asked yet")
)

// node is a driver that was identified on a connection. A new connection must identify its node
// anew: the address may belong to another node by then.
type node struct {
	id       string   // as NodeGetInfo has it
	digests  []string // in the IDs of its volumes and snapshots
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
			case <-time.After(lookSoon): // several connections may be lost at the same time
			}
		}
	}
}

// panicked reports err, the panic of a background task, if it is not nil.
func (r *Router) panicked(err error) {
	if err != nil {
		r.cfg.Report("a background task ended with a panic", err)
	}
}

// find looks up the addresses of the nodes.
func (r *Router) find(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, meetLimit)
	defer cancel()
	addresses, err := r.cfg.Peers(limit)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was := r.lookupErr; err != nil && (was == nil || was.Error() != err.Error()) {
		r.cfg.Report("the lookup of the nodes' addresses failed; the known addresses stay in use", err)
	}
	r.lookupErr = err
	if err == nil {
		r.known = true
		r.update(ctx, addresses)
	}
	r.show()
}

// update connects to new addresses, and drops addresses that no longer exist. The caller holds mu.
func (r *Router) update(ctx context.Context, addresses []string) {
	exists := map[string]bool{}
	for _, address := range addresses {
		exists[address] = true
	}
	for address, e := range r.endpoints {
		if !exists[address] {
			e.cancel()
			delete(r.endpoints, address)
			r.noteGone(e)
		}
	}
	maps.DeleteFunc(r.gone, func(_ string, g gone) bool { return time.Since(g.since) > goneFor })
	maps.DeleteFunc(r.lastSeen, func(_ string, last time.Time) bool { return time.Since(last) > silentFor })
	for address := range exists {
		if r.endpoints[address] != nil {
			continue
		}
		life, cancel := context.WithCancel(ctx)
		e := &endpoint{address: address, cancel: cancel, err: errNotAsked, since: time.Now()}
		r.endpoints[address] = e
		r.keeping.Go(func() {
			guard.Keep(life, func(err error) {
				r.panicked(err)
				r.record(e, nil, nil, err)
			}, func() { r.keepConnected(life, e) })
		})
	}
}

// noteGone records that the last node of an endpoint has no address now. The caller holds mu.
func (r *Router) noteGone(e *endpoint) {
	if e.last != "" {
		r.gone[e.last] = gone{e.address, time.Now()}
		r.metrics.forget(e.last)
	}
}

// keepConnected keeps a connection to the node at an endpoint, until ctx is done.
func (r *Router) keepConnected(ctx context.Context, e *endpoint) {
	var current *node
	defer func() { r.record(e, current, nil, context.Canceled) }()
	pause := time.Duration(0) // after a connection that lasted for less than againLast
	for wait := againFirst; ctx.Err() == nil; {
		n, err := r.identify(ctx, e.address)
		if ctx.Err() != nil {
			retire(n)
			return
		}
		if err != nil && current != nil && !current.conn.lost() {
			err = nil // the renewal failed, and the present connection works
			n = current
		}
		r.record(e, current, n, err)
		if current = n; err != nil {
			if !sleep(ctx, wait/2+rand.N(wait/2)) {
				return
			}
			wait = min(2*wait, againLast)
			continue
		}
		wait = againFirst
		began := time.Now()
		if lost := r.waitUntilLost(ctx, n); lost != nil {
			r.record(e, current, nil, lost)
			current = nil
			if time.Since(began) > againLast {
				pause = 0
			}
			sleep(ctx, pause)
			pause = min(pause+againFirst, lookSoon)
		}
	}
}

// waitUntilLost returns errLost when the connection is lost, or nil when it is time for a new
// connection.
func (r *Router) waitUntilLost(ctx context.Context, n *node) error {
	renew, cancel := context.WithTimeout(ctx, renewEvery/2+rand.N(renewEvery/2))
	defer cancel()
	if n.conn.WaitForStateChange(renew, connectivity.Ready) {
		return errLost
	}
	return nil
}

// record sets the node of an endpoint, instead of was, or the reason why no node answers.
func (r *Router) record(e *endpoint, was, is *node, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was != is {
		retire(was)
	}
	if is == nil && (e.node != nil || e.err == nil) {
		select {
		case r.soon <- struct{}{}:
		default:
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		r.reportSilence(e, err)
	}
	if was != nil {
		r.lastSeen[was.segments[r.cfg.TopologyKey]] = time.Now()
	}
	if is != nil && e.node == nil && !e.reported.IsZero() {
		e.reported = time.Time{}
		r.cfg.Report(is.String()+" answers", nil)
	}
	if is == nil && e.node != nil {
		e.since = time.Now()
	}
	e.node, e.err = is, err
	if is != nil {
		if e.last != is.id { // another node has the address now
			r.noteGone(e)
		}
		e.last = is.id
	}
	r.show()
}

// show gives calls a new view. show reports a node that answers at several addresses when that
// begins. The caller holds mu.
func (r *Router) show() {
	was, is := r.view.Load(), r.newView()
	for key, addresses := range is.twice {
		if was.twice[key] == nil {
			r.cfg.Report("none of them is used",
				fmt.Errorf("several addresses report the same node: %s", strings.Join(addresses, ", ")))
		}
	}
	r.view.Store(is)
}

// reportSilence reports why no node answers at an endpoint: at the beginning, and then once a
// minute if the reason has changed. The caller holds mu.
func (r *Router) reportSilence(e *endpoint, reason error) {
	if !e.reported.IsZero() && (time.Since(e.reported) < reportEvery || e.node == nil &&
		e.err.Error() == reason.Error()) {
		return
	}
	e.reported = time.Now()
	r.cfg.Report("no node answers at "+e.absent().String(), reason)
}

// absent describes an endpoint at which no node answers.
func (e *endpoint) absent() absent { return absent{e.address, e.last, e.err} }

// identify connects to an address and asks the driver for its name and its node.
func (r *Router) identify(ctx context.Context, address string) (n *node, err error) {
	dialing, dialed := context.WithTimeout(ctx, meetLimit)
	raw, err := r.cfg.Dial(dialing, address)
	dialed()
	if err != nil {
		return nil, err
	}
	select { // all handshakes at once would exceed meetLimit
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
	reported, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.Peer(&from))
	if err != nil {
		return nil, fmt.Errorf("ask which node it is: %w", err)
	}
	if err := r.verify(reported, &from); err != nil {
		return nil, err
	}
	return &node{
		id: reported.GetNodeId(), digests: volumeid.NodeDigests(reported.GetNodeId()),
		segments: reported.GetAccessibleTopology().GetSegments(),
		address:  address, conn: conn,
	}, nil
}

// verify returns an error if the reported node ID and topology do not belong to the node on the
// connection.
func (r *Router) verify(reported *csi.NodeGetInfoResponse, from *peer.Peer) error {
	id := reported.GetNodeId()
	if err := volumeid.CheckNode(id); err != nil {
		return fmt.Errorf("invalid node ID %.64q: %w", id, err)
	}
	if segment := reported.GetAccessibleTopology().GetSegments()[r.cfg.TopologyKey]; segment != volumeid.Segment(id) {
		return fmt.Errorf("node %s reports the topology %s=%.64q of another node", id, r.cfg.TopologyKey, segment)
	}
	if r.cfg.Names == nil {
		return nil
	}
	names := r.cfg.Names(from.AuthInfo)
	if !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, id) }) {
		return fmt.Errorf("node %s has a certificate for %.200q", id, names)
	}
	return nil
}

// retire closes a connection when no call uses it. retire waits for a second first, as a call may
// have just looked the node up.
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

// sleep waits for d, and reports whether ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
