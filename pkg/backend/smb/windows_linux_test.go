package smb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/smbtest"
)

// newWindowsNode starts a driver with the mounter of a Windows node.
func newWindowsNode(t *testing.T) *node {
	t.Helper()
	w, dir := newWorld(t, smbtest.Serve(t), smbtest.Share), newKubelet(t)
	n := &node{machine: w.start(dir, w.newWindowsMounter(dir)), Remote: &smbtest.Remote{User: w.user}}
	conn, err := grpc.NewClient(n.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n.ControllerClient, n.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	return n
}

// TestTwoPodsOfAWindowsNodeUseAVolume, also with a group and a mount option of Linux in the class.
func TestTwoPodsOfAWindowsNodeUseAVolume(t *testing.T) {
	n := newWindowsNode(t)
	v := n.volume("v")
	n.ok(n.stage(v, "1000", n.password, time.Minute))
	n.ok(n.publish(v, "one", "1000", "", time.Minute))
	n.ok(n.publish(v, "two", "1000", n.password, time.Minute))
	n.ok(os.WriteFile(n.at("one", "file"), []byte("data"), 0o600))
	for _, path := range []string{n.at("two", "file"), n.path(n.name(v), "file")} {
		if data, err := os.ReadFile(path); err != nil || string(data) != "data" {
			t.Errorf("%s has %q, %v", path, data, err)
		}
	}
	for _, target := range []string{"one", "two"} {
		_, err := n.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: n.at(target)})
		n.ok(err)
	}
	staging := n.at("staging-" + n.name(v))
	_, err := n.NodeUnstageVolume(t.Context(),
		&csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging})
	n.ok(err)
	if left, err := os.ReadDir(staging); err != nil || len(left) > 0 {
		t.Errorf("the staging path has %v, %v, want an empty directory", left, err)
	}
	n.hasNoSecrets(n.password)
}

// TestMountOptionsOnAWindowsNode: those that would not be kept are refused, and nothing is mounted.
func TestMountOptionsOnAWindowsNode(t *testing.T) {
	n := newWindowsNode(t)
	v := n.volume("v")
	for option, want := range map[string]codes.Code{
		"cache=none": codes.OK, "file_mode=0700": codes.OK, "seal": codes.OK,
		"vers=3.1.1": codes.InvalidArgument, "sign": codes.InvalidArgument,
	} {
		use := capability("")
		use.GetMount().MountFlags = []string{option}
		staging := filepath.Join(n.kubelet, "staging-"+strings.ReplaceAll(option, "=", "-"))
		_, err := n.NodeStageVolume(n.context(time.Minute), &csi.NodeStageVolumeRequest{
			VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), StagingTargetPath: staging,
			VolumeCapability: use, Secrets: map[string]string{userKey: n.User, passwordKey: n.password},
		})
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", option, err, want)
		}
		if err == nil {
			_, err = n.NodeUnstageVolume(t.Context(),
				&csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging})
			n.ok(err)
		} else if _, err := os.Lstat(staging); err == nil {
			t.Errorf("%s: something is at the staging path", option)
		}
	}
}
