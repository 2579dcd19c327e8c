package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// modify changes the mutable parameters of a volume.
func (v *volume) modify(parameters map[string]string) error {
	_, err := v.ControllerModifyVolume(context.Background(),
		&csi.ControllerModifyVolumeRequest{VolumeId: v.id, MutableParameters: parameters})
	return err
}

// has reports whether ValidateVolumeCapabilities confirms these mutable parameters and these
// parameters of a volume.
func (v *volume) has(mutable, parameters map[string]string) bool {
	v.Helper()
	resp, err := v.ValidateVolumeCapabilities(context.Background(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: v.id, VolumeCapabilities: []*csi.VolumeCapability{v.capability}, MutableParameters: mutable,
		Parameters: parameters,
	})
	v.want(codes.OK, err)
	return resp.GetConfirmed() != nil && maps.Equal(resp.GetConfirmed().GetMutableParameters(), mutable)
}

func TestModifyRequests(t *testing.T) {
	tier := func(value string) map[string]string { return map[string]string{"tier": value} }
	reserved := map[string]string{"csi.storage.k8s.io/pvc/name": "claim"}
	for name, tc := range map[string]struct {
		id         string // "": the ID of a volume of tier archive
		parameters map[string]string
		code       codes.Code
		wantErr    string
		now        string // tier of the volume after the call
	}{
		"another value":  {"", tier("fast"), codes.OK, "", "fast"},
		"the same value": {"", tier("archive"), codes.OK, "", "archive"},
		"no value":       {"", tier(""), codes.OK, "", "standard"},
		"reserved keys": {"",
			map[string]string{"tier": "fast", "csi.storage.k8s.io/pv/name": "pv",
				"storage.kubernetes.io/x": "y"}, codes.OK, "", "fast"},
		"only reserved keys": {"", reserved, codes.OK, "", "archive"},
		"nothing":            {"", map[string]string{}, codes.InvalidArgument, "missing", "archive"},
		"an unknown parameter": {"", map[string]string{"tier": "fast", "color": "blue"},
			codes.InvalidArgument, "color", "archive"},
		"an unknown value": {"", tier("tape"), codes.InvalidArgument, "tape", "archive"},
		"another prefix": {"", map[string]string{"csi.storage.k8s.io.evil/x": "y"},
			codes.InvalidArgument, "evil", "archive"},
		"no volume":                          {" ", tier("fast"), codes.InvalidArgument, "volume ID", "archive"},
		"no volume, and nothing":             {" ", nil, codes.InvalidArgument, "volume ID", "archive"},
		"a volume that does not exist":       {"none", tier("fast"), codes.NotFound, `"none"`, "archive"},
		"a path":                             {"../v", tier("fast"), codes.NotFound, "", "archive"},
		"no parameters of an unknown volume": {"none", nil, codes.InvalidArgument, "missing", "archive"},
		"reserved keys of an unknown volume": {"none", reserved, codes.NotFound, `"none"`, "archive"},
		"a pod's inline volume":              {handle(1), tier("fast"), codes.NotFound, "", "archive"},
		"reserved keys of an inline volume":  {handle(1), reserved, codes.NotFound, "", "archive"},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t, inMemory)
			inline := &volume{testDriver: d, id: handle(1), capability: capability(singleMode),
				context: map[string]string{ephemeralKey: "true"}}
			d.want(codes.OK, inline.publish("target"))
			v := d.create("v", capability(sharedMode))
			d.want(codes.OK, v.modify(tier("archive")))
			asked := *v
			if tc.id != "" {
				asked.id = strings.TrimSpace(tc.id)
			}
			for range 2 {
				err := asked.modify(tc.parameters)
				if d.want(tc.code, err); err != nil && !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v does not contain %q", err, tc.wantErr)
				}
			}
			d.restart()
			for _, value := range []string{"standard", "fast", "archive"} {
				if got := v.has(tier(value), tier("standard")); got != (value == tc.now) {
					t.Errorf("tier %s is confirmed: %v, want %s", value, got, tc.now)
				}
			}
			d.want(codes.OK, inline.unpublish("target"))
		})
	}
}

func TestAVolumeIsMadeWithMutableParameters(t *testing.T) {
	d := startDriver(t, inMemory)
	req := createRequest("v")
	req.Parameters = map[string]string{"tier": "archive"}
	req.MutableParameters = map[string]string{"tier": "fast", "csi.storage.k8s.io/vac/name": "class"}
	var v *volume
	for range 2 {
		resp, err := d.CreateVolume(context.Background(), req)
		d.want(codes.OK, err)
		v = &volume{testDriver: d, id: resp.GetVolume().GetVolumeId(), capability: capability(sharedMode)}
		if !v.has(req.MutableParameters, req.Parameters) {
			t.Errorf("%v does not match the request", resp)
		}
	}
	for name, confirmed := range map[string]bool{
		"all": v.has(map[string]string{"tier": "fast"}, map[string]string{"tier": "archive"}),
		"only reserved keys": v.has(map[string]string{"csi.storage.k8s.io/vac/name": "x"},
			map[string]string{"csi.storage.k8s.io/x": "y"}),
		"none":                     v.has(nil, nil),
		"no: another mutable":      !v.has(map[string]string{"tier": "archive"}, nil),
		"no: an unknown mutable":   !v.has(map[string]string{"tier": "fast", "color": "blue"}, nil),
		"no: an empty parameter":   !v.has(map[string]string{"color": ""}, nil),
		"no: another parameter":    !v.has(nil, map[string]string{"tier": "fast"}),
		"no: an unknown parameter": !v.has(nil, map[string]string{"tier": "archive", "color": "blue"}),
	} {
		if !confirmed {
			t.Errorf("%s: want the opposite", name)
		}
	}
	for _, bad := range []map[string]string{{"tier": "tape"}, {"color": "blue"}} {
		req := createRequest("bad")
		req.MutableParameters = bad
		_, err := d.CreateVolume(context.Background(), req)
		d.want(codes.InvalidArgument, err)
	}
	req.MutableParameters["tier"] = "standard"
	_, err := d.CreateVolume(context.Background(), req)
	d.want(codes.AlreadyExists, err)
}

// brokenModifier is a backend that records its calls and returns an error.
type brokenModifier struct {
	backend.Backend
	err   error
	asked map[string]string
}

func (b *brokenModifier) Modify(_ context.Context, _ string, parameters, _ map[string]string) error {
	b.asked = parameters
	return b.err
}

func TestBackendErrorsOfModify(t *testing.T) {
	b := &brokenModifier{}
	conn, _, _ := serveOdd(t, b, &logBuffer{}, time.Second)
	for cause, code := range map[error]codes.Code{
		nil:                     codes.OK,
		backend.ErrNotFound:     codes.NotFound,
		backend.ErrInvalid:      codes.InvalidArgument,
		backend.ErrInUse:        codes.FailedPrecondition,
		backend.ErrPrecondition: codes.FailedPrecondition,
		backend.ErrExhausted:    codes.ResourceExhausted,
		backend.ErrOutOfRange:   codes.OutOfRange,
		backend.ErrBusy:         codes.Aborted,
		backend.ErrUnavailable:  codes.Unavailable,
		errors.New("anything"):  codes.Internal,
	} {
		if b.err = nil; cause != nil {
			b.err = fmt.Errorf("the disk: %w", cause)
		}
		_, err := csi.NewControllerClient(conn).ControllerModifyVolume(context.Background(),
			&csi.ControllerModifyVolumeRequest{
				VolumeId: "subject", MutableParameters: map[string]string{"a": "", "b": "x",
					"storage.kubernetes.io/c": "y"},
			})
		if status.Code(err) != code || (err != nil && !strings.Contains(err.Error(), "subject")) {
			t.Errorf("when the backend returns %v: %v, want %s", cause, err, code)
		}
		if want := map[string]string{"a": "", "b": "x"}; !maps.Equal(b.asked, want) {
			t.Errorf("the backend got %q, want %q", b.asked, want)
		}
	}
}

func TestMutableParametersOfABackendThatHasNone(t *testing.T) {
	conn, _, _ := serveOdd(t, &slow{}, &logBuffer{}, time.Second)
	req := createRequest("v")
	req.MutableParameters = map[string]string{"tier": "fast"}
	if _, err := csi.NewControllerClient(conn).CreateVolume(context.Background(),
		req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "tier") {
		t.Errorf("CreateVolume = %v", err)
	}
}
