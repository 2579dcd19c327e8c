package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// blockRange is the offset of a range, and its length.
type blockRange [2]int64

// differ is a backend with snapshots: "a" and "b" of one volume, and "other" of another volume.
type differ struct {
	*odd
	size   int64
	ranges []blockRange       // of every snapshot and every delta
	fail   func(at int) error // called instead of range at
	ended  chan error         // gets the result of each call
}

func (d *differ) SnapshotSize(_ context.Context, id string, _ map[string]string) (int64, error) {
	if !slices.Contains([]string{"a", "b", "other"}, id) {
		return 0, fmt.Errorf("%w: snapshot %q", backend.ErrNotFound, id)
	}
	return d.size, nil
}

func (d *differ) Allocated(ctx context.Context, id string, from int64, secrets map[string]string,
	each func(offset, length int64) error) (err error) {
	defer func() {
		if d.ended != nil {
			d.ended <- err
		}
	}()
	for i, r := range d.ranges {
		if d.fail != nil {
			if err := d.fail(i); err != nil {
				return fmt.Errorf("login with %q: %w", secrets["password"], err)
			}
		}
		if r[0]+r[1] <= from {
			continue
		}
		if err := each(r[0], r[1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) Delta(ctx context.Context, base, target string, from int64, secrets map[string]string,
	each func(offset, length int64) error) error {
	if _, err := d.SnapshotSize(ctx, base, secrets); err != nil {
		return err
	}
	if base == "other" || target == "other" {
		return fmt.Errorf("%w: %q and %q are of two volumes", backend.ErrInvalid, base, target)
	}
	return d.Allocated(ctx, target, from, secrets, each)
}

// answer is a response of either call.
type answer interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// query is a request: GetMetadataAllocated if it has no base. A blank base is sent as "".
type query struct {
	base, target string
	from         int64
	limit        int32
	secrets      map[string]string
}

// call makes the call, and returns its responses and its error.
func (q query) call(ctx context.Context, conn *grpc.ClientConn) (answers []answer, err error) {
	client := csi.NewSnapshotMetadataClient(conn)
	var next func() (answer, error)
	if q.base == "" {
		stream, err := client.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{
			SnapshotId: q.target, StartingOffset: q.from, MaxResults: q.limit, Secrets: q.secrets,
		})
		if err != nil {
			return nil, err
		}
		next = func() (answer, error) { return stream.Recv() }
	} else {
		stream, err := client.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: strings.TrimSpace(q.base), TargetSnapshotId: q.target, StartingOffset: q.from,
			MaxResults: q.limit, Secrets: q.secrets,
		})
		if err != nil {
			return nil, err
		}
		next = func() (answer, error) { return stream.Recv() }
	}
	for {
		a, err := next()
		if errors.Is(err, io.EOF) {
			return answers, nil
		}
		if err != nil {
			return answers, err
		}
		answers = append(answers, a)
	}
}

// rangesOf returns the ranges of answers. The answers must have the same block type and size, and
// at most limit ranges each.
func rangesOf(t *testing.T, answers []answer, style csi.BlockMetadataType, size int64, limit int) []blockRange {
	t.Helper()
	var all []blockRange
	for _, a := range answers {
		if a.GetBlockMetadataType() != style || a.GetVolumeCapacityBytes() != size ||
			len(a.GetBlockMetadata()) > limit {
			t.Fatalf("%s, %d bytes, %d ranges", a.GetBlockMetadataType(), a.GetVolumeCapacityBytes(),
				len(a.GetBlockMetadata()))
		}
		for _, b := range a.GetBlockMetadata() {
			all = append(all, blockRange{b.GetByteOffset(), b.GetSizeBytes()})
		}
	}
	return all
}

// manyRanges returns n ranges of 4 KiB with holes of the same length between them.
func manyRanges(n int) []blockRange {
	var all []blockRange
	for i := range int64(n) {
		all = append(all, blockRange{2 * i * 4096, 4096})
	}
	return all
}

const variable, fixed = csi.BlockMetadataType_VARIABLE_LENGTH, csi.BlockMetadataType_FIXED_LENGTH

func TestSnapshotMetadataIsServedForADiffer(t *testing.T) {
	for name, tc := range map[string]struct {
		backend backend.Backend
		has     bool
	}{
		"a Differ":  {&differ{odd: &odd{probe: alwaysReady}}, true},
		"no Differ": {&odd{probe: alwaysReady}, false},
	} {
		conn, _, _ := serveOdd(t, tc.backend, &logBuffer{}, time.Second)
		resp, err := csi.NewIdentityClient(conn).GetPluginCapabilities(context.Background(),
			&csi.GetPluginCapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(resp.GetCapabilities(), func(c *csi.PluginCapability) bool {
			return c.GetService().GetType() == csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE
		})
		_, err = query{target: "a"}.call(context.Background(), conn)
		if has != tc.has || (status.Code(err) != codes.Unimplemented) != tc.has {
			t.Errorf("%s: advertised: %v; called: %v", name, has, err)
		}
	}
}

func TestBlocksComeInPagesAndFromAnyOffset(t *testing.T) {
	d := &differ{odd: &odd{probe: alwaysReady}, size: 1 << 30, ranges: manyRanges(2*maxRanges + 10)}
	conn, _, _ := serveOdd(t, d, &logBuffer{}, time.Second)
	for _, base := range []string{"", "b"} {
		for limit, pages := range map[int32]int{0: 3, 1: len(d.ranges), 1000: 5, maxRanges: 3, maxRanges + 1: 3,
			math.MaxInt32: 3} {
			answers, err := query{base: base, target: "a", limit: limit}.call(context.Background(), conn)
			if err != nil {
				t.Fatal(err)
			}
			got := rangesOf(t, answers, variable, d.size, min(cmp.Or(int(limit), maxRanges), maxRanges))
			if !slices.Equal(got, d.ranges) || len(answers) != pages {
				t.Errorf("base %q, at most %d: %d ranges in %d messages, want %d in %d", base, limit, len(got),
					len(answers), len(d.ranges), pages)
			}
		}
		for _, i := range []int{1, 1000, len(d.ranges) - 1} {
			for _, from := range []int64{d.ranges[i-1][0] + d.ranges[i-1][1], d.ranges[i][0], d.ranges[i][0] + 4095} {
				answers, err := query{base: base, target: "a", from: from, limit: 700}.call(context.Background(), conn)
				if got := rangesOf(t, answers, variable, d.size, 700); err != nil || !slices.Equal(got, d.ranges[i:]) {
					t.Errorf("base %q from %d: %d ranges, %v, want %d", base, from, len(got), err, len(d.ranges[i:]))
				}
			}
		}
		answers, err := query{base: base, target: "a", from: d.size}.call(context.Background(), conn)
		if err != nil || len(answers) != 1 || len(rangesOf(t, answers, variable, d.size, 0)) != 0 {
			t.Errorf("base %q from the end: %v, %v, want the capacity alone", base, answers, err)
		}
	}
}

func TestBlocksOfOneLength(t *testing.T) {
	const block = 64 << 10
	ranges := []blockRange{{0, 4096}, {8192, 4096}, {block - 4096, 8192}, {4 * block, block},
		{7*block + 4096, 2 * block}}
	for name, tc := range map[string]struct {
		size  int64
		from  int64
		style csi.BlockMetadataType
		want  []blockRange
	}{
		"all": {10 * block, 0, fixed,
			[]blockRange{{0, block}, {block, block}, {4 * block, block}, {7 * block, block}, {8 * block, block},
				{9 * block, block}}},
		"from a block on": {10 * block, block, fixed,
			[]blockRange{{block, block}, {4 * block, block}, {7 * block, block}, {8 * block, block},
				{9 * block, block}}},
		"from within a block": {10 * block, 8*block + 1, fixed, []blockRange{{8 * block, block}, {9 * block, block}}},
		"not a multiple":      {10*block + 4096, 0, variable, ranges},
	} {
		d := &differ{odd: &odd{probe: alwaysReady}, size: tc.size, ranges: ranges}
		conn, _, _ := serveOdd(t, d, &logBuffer{}, time.Second, func(c *Config) { c.MetadataBlock = block })
		for _, base := range []string{"", "b"} {
			answers, err := query{base: base, target: "a", from: tc.from, limit: 2}.call(context.Background(), conn)
			if err != nil {
				t.Fatal(err)
			}
			if got := rangesOf(t, answers, tc.style, tc.size, 2); !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %v, want %v", name, got, tc.want)
			}
		}
	}
	for _, length := range []int64{-4096, 1, 6000} {
		_, err := New(Config{
			Name: testName, Node: "n", Backend: &differ{}, StateDir: t.TempDir(), Log: newTestLogger(&logBuffer{}),
			Registry: newRegistry(), MetadataBlock: length,
		})
		if err == nil {
			t.Errorf("a length of %d bytes is accepted", length)
		}
	}
}

func TestInvalidSnapshotMetadataRequests(t *testing.T) {
	d := &differ{odd: &odd{probe: alwaysReady}, size: 1 << 20, ranges: manyRanges(3)}
	conn, _, _ := serveOdd(t, d, &logBuffer{}, time.Second)
	for name, tc := range map[string]struct {
		query
		code codes.Code
	}{
		"no snapshot":              {query{}, codes.InvalidArgument},
		"no target":                {query{base: "a"}, codes.InvalidArgument},
		"no base":                  {query{base: " ", target: "a"}, codes.InvalidArgument},
		"a negative maximum":       {query{target: "a", limit: -1}, codes.InvalidArgument},
		"a negative offset":        {query{target: "a", from: -1}, codes.OutOfRange},
		"an offset beyond":         {query{target: "a", from: 1<<20 + 1}, codes.OutOfRange},
		"an unknown snapshot":      {query{target: "x"}, codes.NotFound},
		"an unknown target":        {query{base: "a", target: "x"}, codes.NotFound},
		"an unknown base":          {query{base: "x", target: "a"}, codes.NotFound},
		"a delta's bad maximum":    {query{base: "a", target: "b", limit: -1}, codes.InvalidArgument},
		"a delta's low offset":     {query{base: "a", target: "b", from: -4096}, codes.OutOfRange},
		"a delta's high offset":    {query{base: "a", target: "b", from: math.MaxInt64}, codes.OutOfRange},
		"snapshots of two volumes": {query{base: "a", target: "other"}, codes.InvalidArgument},
	} {
		answers, err := tc.call(context.Background(), conn)
		if status.Code(err) != tc.code || len(answers) > 0 {
			t.Errorf("%s: %v, %v, want %s", name, answers, err, tc.code)
		}
	}
}

// TestInterceptorsApplyToStreams ends a stream in the middle, and checks the code, the metrics and
// the log.
func TestInterceptorsApplyToStreams(t *testing.T) {
	const secret = "correct horse battery"
	for name, tc := range map[string]struct {
		fail    func() error
		code    codes.Code
		wantErr string
	}{
		"success": {func() error { return nil }, codes.OK, ""},
		"an error": {func() error { return fmt.Errorf("%w: the disk", backend.ErrUnavailable) }, codes.Unavailable,
			`login with "***"`},
		"a panic": {func() error { panic("a bug") }, codes.Internal, "panicked"},
	} {
		for _, base := range []string{"", "b"} {
			log, registry := &logBuffer{}, newRegistry()
			d := &differ{odd: &odd{probe: alwaysReady}, size: 1 << 20, ranges: manyRanges(5), fail: func(at int) error {
				if at < 4 {
					return nil
				}
				return tc.fail()
			}}
			conn, _, _ := serveOdd(t, d, log, time.Second, func(c *Config) { c.Registry = registry })
			q := query{base: base, target: "a", limit: 2, secrets: map[string]string{"password": secret}}
			answers, err := q.call(context.Background(), conn)
			if got := rangesOf(t, answers, variable, d.size, 2); status.Code(err) != tc.code || len(got) < 4 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), secret)) {
				t.Errorf("%s: %v, want %q", name, err, tc.wantErr)
			}
			method := "GetMetadataDelta"
			if base == "" {
				method = "GetMetadataAllocated"
			}
			if n := counted(t, registry, method, tc.code); n != 1 {
				t.Errorf("%s: %s with %s is counted %v times", name, method, tc.code, n)
			}
			line := log.String()
			for _, want := range []string{"msg=" + method, "code=" + tc.code.String(), "snapshot=a", stripped} {
				if !strings.Contains(line, want) {
					t.Errorf("%s: no %s in the log: %s", name, want, line)
				}
			}
			if strings.Contains(line, secret) || strings.Contains(line, "base=b") != (base == "b") ||
				strings.Contains(line, "metadata_test.go") != (name == "a panic") {
				t.Errorf("%s: the log is %s", name, line)
			}
		}
	}
}

// counted returns the number of calls of a method with a code, when no call runs any more.
func counted(t *testing.T, registry *prometheus.Registry, method string, code codes.Code) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == metricPrefix+"csi_calls_total" && labels["method"] == method &&
				labels["code"] == code.String() {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestACanceledStreamEndsTheBackendCall(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := &differ{odd: &odd{probe: alwaysReady}, size: math.MaxInt64, ranges: manyRanges(1 << 20),
		ended: make(chan error, 1)}
	conn, _, _ := serveOdd(t, d, &logBuffer{}, time.Second)
	stream, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(ctx,
		&csi.GetMetadataAllocatedRequest{SnapshotId: "a", MaxResults: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := await.Receive(t, "the call ends", d.ended); codeOf(err) != codes.Canceled {
		t.Errorf("the call ended with %v", err)
	}
}

func TestChangedBlocksOfAVolumeInMemory(t *testing.T) {
	for block, want := range map[int64][2][]blockRange{
		0:         {{{0, 64 << 10}, {512 << 10, 64 << 10}}, {{512 << 10, 64 << 10}}},
		256 << 10: {{{0, 256 << 10}, {512 << 10, 256 << 10}}, {{512 << 10, 256 << 10}}},
	} {
		d := startDriver(t, inMemory, func(d *testDriver) { d.metadataBlock = block })
		v := d.create("v", device(sharedMode))
		var snapshots []string
		for i, at := range []int64{0, 513 << 10} {
			m, err := d.memory.Mount(context.Background(), v.id, backend.Access{Block: true})
			if err != nil {
				t.Fatal(err)
			}
			disk, err := os.OpenFile(m.Source, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := disk.WriteAt([]byte("something"), at); err != nil {
				t.Fatal(err)
			}
			disk.Close()
			snapshots = append(snapshots, v.snapshot(fmt.Sprint("s", i)).GetSnapshotId())
		}
		d.want(codes.OK, v.delete()) // the snapshots do not need the volume
		style := variable
		if block > 0 {
			style = fixed
		}
		for i, q := range []query{{target: snapshots[1]}, {base: snapshots[0], target: snapshots[1]}} {
			answers, err := q.call(context.Background(), d.conn)
			if d.want(codes.OK, err); !slices.Equal(rangesOf(t, answers, style, 1<<20, maxRanges), want[i]) {
				t.Errorf("%+v, in blocks of %d: %v, want %v", q, block, answers, want[i])
			}
		}
		ofDirectory := d.create("directory", capability(sharedMode)).snapshot("s2").GetSnapshotId()
		_, err := query{target: ofDirectory}.call(context.Background(), d.conn)
		d.want(codes.InvalidArgument, err)
	}
}

func TestOnlyStreamsOfAnswersAreServed(t *testing.T) {
	for _, method := range []string{"/csi.v1.Nothing/AtAll", "/", "", "/csi.v1.SnapshotMetadata"} {
		if _, err := requestOf(&grpc.StreamServerInfo{FullMethod: method}); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
	}
}
