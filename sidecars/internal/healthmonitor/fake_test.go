package healthmonitor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	apitypes "k8s.io/apimachinery/pkg/types"
	fieldpath "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	objectref "k8s.io/client-go/tools/reference"
)

const driverName = "health.csi.example.com"

// fakeDriver is a driver's controller side: volumes and their conditions.
type fakeDriver struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer

	mu        sync.Mutex
	volumes   map[string][]*csi.VolumeHealth_VolumeHealthEntry // those that exist, by ID
	unlisted  map[string]bool                                  // volumes that a list misses
	errs      map[string]error                                 // of single volumes
	listErr   error
	lastErr   error // of a list's pages after the first
	badTokens int   // how many tokens will be refused
	sameToken bool  // a list never ends
	twice     bool  // a list has each volume twice, first as it was before
	away      bool
	instead   *csi.ControllerGetVolumeHealthResponse // answered for every volume
	hang      bool                                   // there is no answer for a volume that is well
	silent    bool                                   // no call is answered
	answersAs *string                                // the volume ID in all answers of ControllerGetVolume
	// of CSI v1.12: the unknown fields of each VolumeStatus, by volume ID
	statuses map[string]string
	lists    int
	gets     int
}

// awaitCaller returns nil, or the end of ctx if the driver is silent: awaitEnd.
func (d *fakeDriver) awaitCaller(ctx context.Context) error {
	d.mu.Lock()
	silent := d.silent
	d.mu.Unlock()
	if silent {
		return awaitEnd(ctx)
	}
	return nil
}

// awaitEnd waits until the caller has lost patience. An answer then could reach a caller whose own
// timer has not fired yet, at the same moment.
func awaitEnd(ctx context.Context) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func (d *fakeDriver) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if err := d.awaitCaller(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return nil, status.Error(codes.Unavailable, "away")
	}
	return &csi.ProbeResponse{}, nil
}

func (d *fakeDriver) ControllerGetVolumeHealth(ctx context.Context,
	req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if err := d.awaitCaller(ctx); err != nil {
		return nil, err
	}
	id := req.GetVolumeId()
	d.mu.Lock()
	d.gets++
	hang := d.hang && len(d.volumes[id]) == 0
	d.mu.Unlock()
	if hang {
		return nil, awaitEnd(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	entries, ok := d.volumes[id]
	switch {
	case d.away:
		return nil, status.Error(codes.Unavailable, "away")
	case d.errs[id] != nil:
		return nil, d.errs[id]
	case d.instead != nil:
		return d.instead, nil
	case !ok:
		return nil, status.Errorf(codes.NotFound, "no volume %q", id)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: id,
		HealthStatuses: entries}}, nil
}

// ControllerListVolumeHealth has the number of volumes before the page for a token.
func (d *fakeDriver) ControllerListVolumeHealth(ctx context.Context,
	req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if err := d.awaitCaller(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	start := 0
	switch {
	case d.away:
		return nil, status.Error(codes.Unavailable, "away")
	case d.listErr != nil:
		return nil, d.listErr
	case req.GetStartingToken() != "" && d.lastErr != nil:
		return nil, d.lastErr
	case req.GetStartingToken() != "":
		if d.badTokens > 0 {
			d.badTokens--
			return nil, status.Error(codes.Aborted, "that token is no longer good")
		}
		start, _ = strconv.Atoi(req.GetStartingToken())
	}
	all := d.abnormal()
	end := len(all)
	if limit := int(req.GetMaxEntries()); limit > 0 {
		end = min(end, start+limit)
	}
	resp := &csi.ControllerListVolumeHealthResponse{Entries: all[start:end]}
	switch {
	case d.sameToken:
		resp.NextToken = "0"
	case end < len(all):
		resp.NextToken = strconv.Itoa(end)
	}
	return resp, nil
}

// abnormal has the entries of a list, in order of IDs. Healthy volumes are omitted.
func (d *fakeDriver) abnormal() []*csi.VolumeHealth {
	var all []*csi.VolumeHealth
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		if len(d.volumes[id]) == 0 || d.unlisted[id] {
			continue
		}
		if d.twice {
			all = append(all, &csi.VolumeHealth{VolumeId: id,
				HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{degraded("Before", "")}})
		}
		all = append(all, &csi.VolumeHealth{VolumeId: id, HealthStatuses: d.volumes[id]})
	}
	return all
}

// set changes the driver's state between rounds.
func (d *fakeDriver) set(change func(*fakeDriver)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// calls returns how many lists and gets there were since the last time it was asked.
func (d *fakeDriver) calls() (lists, gets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lists, gets = d.lists, d.gets
	d.lists, d.gets = 0, 0
	return lists, gets
}

func entry(s csi.VolumeHealthErrorType, reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return &csi.VolumeHealth_VolumeHealthEntry{Status: s, Reason: reason, Message: message}
}

func degraded(reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return entry(csi.VolumeHealthErrorType_DEGRADED, reason, message)
}

func lost(reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return entry(csi.VolumeHealthErrorType_DATA_LOSS, reason, message)
}

// dial serves the driver in this process.
func dial(t *testing.T, d *fakeDriver) *grpc.ClientConn {
	t.Helper()
	l, server := bufconn.Listen(1<<20), grpc.NewServer()
	csi.RegisterControllerServer(server, d)
	csi.RegisterIdentityServer(server, d)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

// fakeAPI is client-go's fake with the validation of a claim's status of an API server of 1.37.
type fakeAPI struct {
	*fake.Clientset
	mu       sync.Mutex
	gate     bool // CSIVolumeHealth
	unknown  bool // the status Unknown is accepted, as by no released API server
	patchErr error
	writes   int // patches that arrived
}

func newAPI(gate bool, objects ...runtime.Object) *fakeAPI {
	a := &fakeAPI{Clientset: fake.NewSimpleClientset(objects...), gate: gate}
	a.PrependReactor("patch", "persistentvolumeclaims", a.patch)
	return a
}

// patch is DropDisabledFieldsFromStatus and ValidatePersistentVolumeClaimStatusUpdate of Kubernetes
// 1.37.1, and counts versions.
func (a *fakeAPI) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	p := action.(clienttesting.PatchAction)
	resource := v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	got, err := a.Tracker().Get(resource, p.GetNamespace(), p.GetName())
	if err = cmp.Or(a.patchErr, err); err != nil {
		return true, nil, err
	}
	c := got.(*v1.PersistentVolumeClaim).DeepCopy()
	if err := a.merge(c, p); err != nil {
		return true, nil, err
	}
	if !a.gate && got.(*v1.PersistentVolumeClaim).Status.HealthStatus == nil {
		c.Status.HealthStatus = nil
	}
	version, _ := strconv.Atoi(c.ResourceVersion)
	c.ResourceVersion = strconv.Itoa(version + 1)
	return true, c, a.Tracker().Update(resource, c, c.Namespace)
}

// merge is a JSON merge patch of health, into a claim of the same UID.
func (a *fakeAPI) merge(c *v1.PersistentVolumeClaim, p clienttesting.PatchAction) error {
	var body struct {
		Metadata struct{ UID apitypes.UID }
		Status   struct{ HealthStatus *v1.VolumeHealthStatus }
	}
	if p.GetPatchType() != apitypes.MergePatchType || p.GetSubresource() != "status" || !utf8.Valid(p.GetPatch()) {
		return apierrors.NewBadRequest("not a merge patch of a status")
	}
	if err := json.Unmarshal(p.GetPatch(), &body); err != nil {
		return err
	}
	if body.Metadata.UID != c.UID {
		return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind(), c.Name,
			fieldpath.ErrorList{fieldpath.Invalid(fieldpath.NewPath("metadata", "uid"), body.Metadata.UID,
				"field is immutable")})
	}
	c.Status.HealthStatus = body.Status.HealthStatus
	if h := c.Status.HealthStatus; !a.unknown && h != nil && slices.ContainsFunc(h.HealthConditions, isUnknown) {
		return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind(), c.Name,
			fieldpath.ErrorList{fieldpath.NotSupported(fieldpath.NewPath("status", "healthStatus"), statusUnknown,
				[]string{"DataLoss", "Degraded", "Inaccessible"})})
	}
	return validate(c.Status.HealthStatus)
}

func validate(h *v1.VolumeHealthStatus) error {
	if h == nil {
		return nil
	}
	if len(h.HealthConditions) > 16 {
		return apierrors.NewBadRequest("more than 16 conditions")
	}
	seen := map[string]bool{}
	for _, c := range h.HealthConditions {
		key := string(c.Status) + "/" + c.Reason
		if len(c.Reason) > 256 || len(metavalidation.IsValidConditionReason(c.Reason)) > 0 || len(c.Message) > 1024 ||
			seen[key] {
			return apierrors.NewBadRequest(fmt.Sprintf("condition %+v", c))
		}
		seen[key] = true
	}
	return nil
}

func (a *fakeAPI) set(change func(*fakeAPI)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// written returns how many patches arrived since the last time it was asked.
func (a *fakeAPI) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.writes
	a.writes = 0
	return n
}

// events remembers events as lines: type, reason, object, words.
type events struct {
	mu    sync.Mutex
	lines []string
}

func (e *events) Event(o runtime.Object, kind, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(message) > 1024 || !utf8.ValidString(message) || strings.ContainsAny(message, "\n\x1b") {
		message = "what no event may have"
	}
	about, err := objectref.GetReference(scheme.Scheme, o)
	if err != nil || about.UID == "" {
		message = fmt.Sprintf("about nothing: %v", err)
	}
	e.lines = append(e.lines, fmt.Sprintf("%s %s %s %s: %s", kind, reason, about.Kind, about.Name, message))
}

func (e *events) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	e.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (e *events) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	e.Eventf(o, kind, reason, format, args...)
}

// said returns the events since the last time it was asked.
func (e *events) said() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	lines := e.lines
	e.lines = nil
	return lines
}

// harness is a monitor between a driver and an API server.
type harness struct {
	*testing.T
	*Monitor
	driver   *fakeDriver
	api      *fakeAPI
	events   *events
	registry *prometheus.Registry
	config   Config
	freeze   func() // the caches stay as they are
}

var listAndGet = rpc.ControllerCapabilitySet{
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH: true,
	csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:  true,
}

// bubble returns a test that runs in a synctest bubble.
func bubble(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// start makes a monitor whose caches are filled, in a bubble. A single worker keeps the number of
// writes exact.
func start(t *testing.T, api *fakeAPI, d *fakeDriver, change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{T: t, driver: d, api: api}
	h.config = Config{Options: defaults, Driver: driverName, Capabilities: listAndGet, Conn: dial(t, d), Client: api}
	h.config.Workers, h.config.PageSize = 1, 2
	for _, c := range change {
		c(&h.config)
	}
	h.restart()
	return h
}

// restart replaces the monitor by another, without its memory.
func (h *harness) restart() {
	h.Helper()
	h.events, h.registry = &events{}, prometheus.NewRegistry()
	h.config.Recorder, h.config.Register = h.events, h.registry.MustRegister
	h.config.Informers = informers.NewSharedInformerFactory(h.api, 0)
	m, err := NewMonitor(h.config)
	if err != nil {
		h.Fatal(err)
	}
	h.Monitor = m
	ctx, cancel := context.WithCancel(h.Context())
	h.config.Informers.Start(ctx.Done())
	h.config.Informers.WaitForCacheSync(ctx.Done())
	h.freeze = func() { cancel(); m.Informers.Shutdown() }
	h.Cleanup(h.freeze)
}

// runRound makes a round, a minute after the round before, and waits until the caches have its
// writes.
func (h *harness) runRound() {
	h.Helper()
	time.Sleep(h.GetInterval)
	if _, err := h.round(h.Context()); err != nil {
		h.Log("round:", err)
	}
	synctest.Wait()
}

// health returns the conditions in a claim's status as "Status(Reason) message".
func (h *harness) health(claim string) []string {
	h.Helper()
	c, err := h.api.CoreV1().PersistentVolumeClaims("team").Get(h.Context(), claim, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	var all []string
	if s := c.Status.HealthStatus; s != nil {
		for _, c := range s.HealthConditions {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s(%s) %s", c.Status, c.Reason, c.Message)))
		}
	}
	return all
}

// wants fails unless got is want.
func (h *harness) wants(what string, got []string, want ...string) {
	h.Helper()
	if !slices.Equal(got, want) {
		h.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// bound returns a volume of this driver and its claim, as vol-<n>, pv-<n> and claim-<n> in
// namespace team.
func bound(n string) []runtime.Object {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim-" + n, UID: apitypes.UID("uid-" + n),
			ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + n},
	}
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + n, ResourceVersion: "1",
			Annotations: map[string]string{provisionedBy: driverName}},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driverName,
				VolumeHandle: "vol-" + n}},
			ClaimRef: &v1.ObjectReference{Namespace: "team", Name: "claim-" + n, UID: claim.UID},
		},
	}
	return []runtime.Object{volume, claim}
}

func bounds(names ...string) []runtime.Object {
	var all []runtime.Object
	for _, n := range names {
		all = append(all, bound(n)...)
	}
	return all
}

// holding is a driver with volumes and the condition of each.
func holding(volumes map[string][]*csi.VolumeHealth_VolumeHealthEntry) *fakeDriver {
	return &fakeDriver{volumes: volumes, unlisted: map[string]bool{}, errs: map[string]error{}}
}

type sickness = map[string][]*csi.VolumeHealth_VolumeHealthEntry
