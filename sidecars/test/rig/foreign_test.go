package rig

import (
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// newForeign returns a foreign driver with a volume, a connection to it, and the volume's ID.
func newForeign(t *testing.T) (*Driver, *grpc.ClientConn, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rig-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d, err := NewDriver(dir, DriverOptions{Foreign: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Stop() })
	v, err := d.Storage.Create(t.Context(), backend.CreateOptions{Name: "one", Required: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return d, conn, v.ID
}

func TestAForeignDriverIsNotOurs(t *testing.T) {
	d, conn, _ := newForeign(t)
	socket, err := os.Stat(d.Socket)
	if err != nil || socket.Mode() != fs.ModeSocket|0o755 {
		t.Errorf("the socket has mode %v, %v", socket.Mode(), err)
	}
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "csi.vendor.example.org" {
		t.Errorf("GetPluginInfo = %v, %v", info, err)
	}
	controller, err := csi.NewControllerClient(conn).ControllerGetCapabilities(t.Context(),
		&csi.ControllerGetCapabilitiesRequest{})
	var can []int32
	for _, c := range controller.GetCapabilities() {
		can = append(can, int32(c.GetRpc().GetType()))
	}
	if err != nil || !slices.Contains(can, 11) || !slices.Contains(can, 12) || slices.Max(can) > 15 {
		t.Errorf("controller capabilities %v, %v; want VOLUME_CONDITION and GET_VOLUME, and none of CSI v1.13", can,
			err)
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	var nodeCan []int32
	for _, c := range node.GetCapabilities() {
		nodeCan = append(nodeCan, int32(c.GetRpc().GetType()))
	}
	if err != nil || !slices.Contains(nodeCan, 4) || slices.Max(nodeCan) > 6 {
		t.Errorf("node capabilities %v, %v; want VOLUME_CONDITION, and none of CSI v1.13", nodeCan, err)
	}
	_, err = csi.NewControllerClient(conn).ControllerListVolumeHealth(t.Context(),
		&csi.ControllerListVolumeHealthRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a call of CSI v1.13: %v, want UNIMPLEMENTED", err)
	}
}

// The bytes are those of the Go package of CSI spec v1.12.0 for such a VolumeStatus.
func TestAForeignDriverReportsConditionsAsCSI112(t *testing.T) {
	d, conn, id := newForeign(t)
	controller := csi.NewControllerClient(conn)
	for _, c := range []struct {
		set  Condition
		want string
	}{
		{Condition{}, "\x12\x00"},
		{Condition{Abnormal: true, Message: "disk lost"}, "\x12\r\b\x01\x12\tdisk lost"},
	} {
		if c.set != (Condition{}) { // which is every volume's before
			d.SetCondition(id, c.set)
		}
		list, err := controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		if err != nil || len(list.GetEntries()) != 1 {
			t.Fatalf("ListVolumes: %v, %v", list, err)
		}
		one, err := controller.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			t.Fatal(err)
		}
		stats := &csi.NodeGetVolumeStatsResponse{} // without a volume that is published
		d.pose(&csi.NodeGetVolumeStatsRequest{VolumeId: id}, stats)
		if n := stats.ProtoReflect().GetUnknown(); string(n) != c.want {
			t.Errorf("the condition in NodeGetVolumeStats is %q, want %q", n, c.want)
		}
		if l, o := list.Entries[0].GetStatus().ProtoReflect().GetUnknown(), one.GetStatus().ProtoReflect().GetUnknown(); string(l) != c.want || string(o) != c.want {
			t.Errorf("the condition is %q in a list and %q for the volume, want %q", l, o, c.want)
		}
	}
}

func TestAForeignDriverIsReadyAfterItsSocketIsServed(t *testing.T) {
	d, conn, _ := newForeign(t)
	for _, ready := range []bool{true, false, true} {
		d.SetReady(ready)
		got, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{})
		if err != nil || got.GetReady().GetValue() != ready {
			t.Errorf("Probe = %v, %v, want %v", got, err, ready)
		}
	}
}
