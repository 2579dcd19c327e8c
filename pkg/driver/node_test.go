package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

func TestFilesReachAllTargetsOfAVolume(t *testing.T) {
	d := startReal(t)
	v := d.create("shared", capability(sharedMode))
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publish("one"))
	d.want(codes.OK, v.publish("two", readOnly))
	if err := os.WriteFile(d.path("one", "f"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(d.path("two", "f")); string(got) != "hello" {
		t.Errorf("two shows %q, %v", got, err)
	}
	if err := os.WriteFile(d.path("two", "f"), nil, 0o600); err == nil {
		t.Error("a read-only target was written to")
	}
	for _, target := range []string{"one", "two"} {
		d.want(codes.OK, v.unpublish(target))
		if exists(d.path(target)) {
			t.Errorf("%s still exists after NodeUnpublishVolume", target)
		}
	}
	d.want(codes.OK, v.unstage())
	if got, err := os.ReadFile(filepath.Join(v.data(), "f")); string(got) != "hello" {
		t.Errorf("the volume holds %q, %v", got, err)
	}
	d.want(codes.OK, v.delete())
}

// startReal starts a driver with real mounts, or skips the test.
func startReal(t *testing.T) *testDriver {
	t.Helper()
	if realMounter == nil {
		namespace.Skip(t, "this process cannot mount")
	}
	return startDriver(t, func(d *testDriver) { d.real = true })
}

// TestASecondPublish is the table of CSI spec v1.13, NodePublishVolume.
func TestASecondPublish(t *testing.T) {
	type answers struct{ same, sameTarget, samePath, other codes.Code }
	refused := answers{codes.OK, codes.AlreadyExists, codes.FailedPrecondition, codes.FailedPrecondition}
	for mode, want := range map[csi.VolumeCapability_AccessMode_Mode]answers{
		singleMode: refused,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER: refused,
		// read-only already
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY: {codes.OK, codes.OK, codes.FailedPrecondition,
			codes.FailedPrecondition},
		sharedMode: {codes.OK, codes.AlreadyExists, codes.OK, codes.OK},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			forEachMounter(t, func(t *testing.T, d *testDriver) {
				var how []func(*csi.NodePublishVolumeRequest)
				if d.links && mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
					how = append(how, readOnly) // see TestOnlyTheRuntimeOfWindowsMakesAVolumeReadOnly
				}
				for _, restarted := range []bool{false, true} {
					v := d.create("v", capability(mode))
					d.want(codes.OK, v.stage())
					d.want(codes.OK, v.publish("one", how...))
					if restarted {
						d.restart()
					}
					d.want(want.same, v.publish("one", how...))
					d.want(want.sameTarget, v.publish("one", readOnly))
					d.want(want.samePath, v.publish("two", how...))
					d.want(want.other, v.publish("three", readOnly))
					for _, target := range []string{"one", "two", "three"} {
						d.want(codes.OK, v.unpublish(target))
					}
					d.want(codes.OK, v.publish("two", how...))
					d.want(codes.OK, v.unpublish("two"))
					d.want(codes.OK, v.unstage())
					d.want(codes.OK, v.delete())
				}
			})
		})
	}
}

// TestOnlyTheRuntimeOfWindowsMakesAVolumeReadOnly: an access mode or a mount option for reading,
// without readonly in the request, would give the pod a volume that it can change.
func TestOnlyTheRuntimeOfWindowsMakesAVolumeReadOnly(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		uses, want := map[string]*csi.VolumeCapability{
			"mode": capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)}, codes.OK
		if d.links {
			uses["option"], want = capability(singleMode, "ro"), codes.InvalidArgument
		}
		for name, use := range uses {
			v := d.create(name, use)
			d.want(codes.OK, v.stage())
			d.want(want, v.publish(name))
			d.want(codes.OK, v.publish(name, readOnly))
			d.want(codes.OK, v.unpublish(name))
			d.want(codes.OK, v.unstage())
			d.want(codes.OK, v.delete())
		}
	})
}

func TestAnotherCapabilityThanAtStaging(t *testing.T) {
	for name, restarted := range map[string]bool{"without a restart": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			forEachMounter(t, func(t *testing.T, d *testDriver) {
				v := d.create("v", capability(sharedMode))
				d.want(codes.OK, v.stage())
				d.want(codes.OK, v.publish("one"))
				if restarted {
					d.restart()
				}
				for _, vc := range []*csi.VolumeCapability{capability(singleMode), capability(sharedMode, "noexec")} {
					v.capability = vc
					d.want(codes.AlreadyExists, v.stage())
					d.want(codes.AlreadyExists, v.publish("one"))
					d.want(codes.FailedPrecondition, v.publish("two"))
				}
				if exists(d.path("two")) {
					t.Error("a rejected publish left its target")
				}
				v.capability = capability(sharedMode)
				d.want(codes.OK, v.stage())
				d.want(codes.OK, v.unpublish("one"))
				d.want(codes.OK, v.unstage())
				v.capability = capability(singleMode)
				d.want(codes.OK, v.stage()) // a new stage call accepts any capability
				d.want(codes.OK, v.publish("one"))
				d.want(codes.OK, v.unpublish("one"))
				d.want(codes.OK, v.unstage())
			})
		})
	}
}

func TestPublishNeedsStaging(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v, w := d.create("v", capability(sharedMode)), d.create("w", capability(sharedMode))
		d.want(codes.FailedPrecondition, v.publish("one"))
		d.want(codes.FailedPrecondition,
			v.publish("one", func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }))
		d.want(codes.InvalidArgument, v.publish("one",
			func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = d.root }))
		d.want(codes.InvalidArgument, v.publish("one",
			func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = r.TargetPath }))
		d.want(codes.OK, w.stage())
		d.want(codes.FailedPrecondition,
			v.publish("one", func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = w.staging }))
		d.want(codes.NotFound, v.publish("one", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "none" }))
		if exists(d.path("one")) {
			t.Error("a rejected publish left its target")
		}
		v.staging = w.staging
		d.want(codes.AlreadyExists, v.stage())
		d.want(codes.OK, w.unstage())
	})
}

func TestATargetIsNoStagingPath(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		d.want(codes.FailedPrecondition,
			v.publish("two", func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = v.path("one") }))
		if exists(d.path("two")) {
			t.Error("the target path of a pod was published to another pod")
		}
		d.restart()
		d.want(codes.FailedPrecondition,
			v.publish("two", func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = v.path("one") }))
		d.want(codes.OK, v.publish("two"))
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unpublish("two"))
		d.want(codes.OK, v.unstage())
	})
}

func TestPublishWithAnUnmountedStagingPath(t *testing.T) {
	d := startReal(t)
	v := d.create("v", capability(sharedMode))
	d.want(codes.OK, v.stage())
	if err := d.mounter.Unmount(context.Background(), v.staging); err != nil {
		t.Fatal(err)
	}
	d.want(codes.FailedPrecondition, v.publish("one"))
	health, err := d.NodeGetVolumeHealth(context.Background(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	if s := health.GetVolumeHealth().GetHealthStatuses(); err != nil || len(s) != 1 ||
		s[0].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE {
		t.Errorf("health is %v, %v", health, err)
	}
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publish("one"))
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

func TestAMountedVolumeIsNotDeleted(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.want(codes.FailedPrecondition, v.delete())
		d.want(codes.OK, v.publish("one"))
		d.want(codes.FailedPrecondition, v.delete())
		d.want(codes.OK, v.unstage()) // a CO must not unstage here
		d.restart()
		d.want(codes.FailedPrecondition, v.delete())
		if !exists(v.data()) {
			t.Fatal("the data is gone")
		}
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.delete())
	})
}

func TestABusyTargetIsNotUnpublished(t *testing.T) {
	d := startReal(t)
	v := d.create("v", capability(sharedMode))
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publish("one"))
	f, err := os.Create(d.path("one", "open"))
	if err != nil {
		t.Fatal(err)
	}
	d.want(codes.FailedPrecondition, v.unpublish("one"))
	if _, err := f.WriteString("still mine"); err != nil {
		t.Error(err)
	}
	f.Close()
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

func TestInvalidTargetPathsAreRejected(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		precious := filepath.Join(d.dir, "precious")
		for _, err := range []error{
			os.MkdirAll(filepath.Join(precious, "sub"), 0o755),
			winetest.Symlink(precious, d.path("link")),
			os.WriteFile(d.path("file"), []byte("precious"), 0o600),
			os.MkdirAll(d.path("full", "sub"), 0o755),
			winetest.Symlink(precious, filepath.Join(v.data(), "planted")), // a link that the pod created
		} {
			if errors.Is(err, errors.ErrUnsupported) {
				d.want(codes.OK, v.unstage())
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, target := range []string{precious, d.kubelet, d.path("link"), d.path("link", "sub"), d.path("file"),
			"relative", d.path("x") + "/../../precious", d.path(strings.Repeat("x", 300), "y")} {
			at := func(r *csi.NodePublishVolumeRequest) { r.TargetPath = target }
			if err := v.publish("", at); err == nil {
				t.Errorf("published at %.80q", target)
			}
			if d.links && target == d.path("link") { // NodeUnpublishVolume removes a link of a lost record
				continue
			}
			_, err := d.NodeUnpublishVolume(context.Background(),
				&csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: target})
			if target != d.path(strings.Repeat("x", 300), "y") {
				d.want(codes.InvalidArgument, err)
			}
		}
		d.want(codes.FailedPrecondition, v.publish("full"))
		d.want(codes.OK, v.publish("one"))
		// Through the link of the pod, the target path would be outside the kubelet directory.
		if d.real {
			d.want(codes.InvalidArgument, v.publish("one/planted/target"))
			d.want(codes.InvalidArgument, v.unpublish("one/planted"))
		}
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
		if !exists(filepath.Join(precious, "sub")) || !exists(d.path("full", "sub")) || !exists(d.path("file")) ||
			!exists(d.path("link")) {
			t.Error("another file was changed")
		}
	})
}

func TestUnpublishAndUnstageMayBeRepeated(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		for range 3 {
			d.want(codes.OK, v.unpublish("one"))
		}
		for range 3 {
			d.want(codes.OK, v.unstage())
		}
		d.want(codes.OK, v.delete())
		// The kubelet also cleans up volumes that the driver does not know any more.
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
	})
}

func TestInlineVolumes(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		ctx := context.Background()
		inline := func(n int, attributes map[string]string) error {
			attributes[ephemeralKey], attributes["csi.storage.k8s.io/pod.name"] = "true", "pod"
			_, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId: handle(n), TargetPath: d.path("inline"),
				VolumeCapability: capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER),
				VolumeContext:    attributes,
			})
			return err
		}
		unpublish := func(n int) error {
			_, err := d.NodeUnpublishVolume(ctx,
				&csi.NodeUnpublishVolumeRequest{VolumeId: handle(n), TargetPath: d.path("inline")})
			return err
		}
		volumes := func() int {
			entries, err := os.ReadDir(filepath.Join(d.root, "volumes"))
			if err != nil {
				t.Fatal(err)
			}
			return len(entries)
		}

		for _, bad := range []map[string]string{
			{"size": "much"}, {"size": "-1"}, {"size": "0"}, {"size": ""}, {"color": "blue"}, {"kind": "tape"},
			{"size": "9999999999999999999"},
		} {
			d.want(codes.InvalidArgument, inline(1, bad))
		}
		d.want(codes.ResourceExhausted, inline(1, map[string]string{"size": "8000Pi"}))
		if volumes() != 0 || exists(d.path("inline")) {
			t.Fatal("a rejected inline volume left files")
		}

		for range 2 {
			d.want(codes.OK, inline(1, map[string]string{"size": "10Mi"}))
		}
		d.want(codes.AlreadyExists, inline(1, map[string]string{"size": "20Mi"}))
		if volumes() != 1 {
			t.Errorf("there are %d volumes", volumes())
		}
		if list, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{}); err != nil || len(list.GetEntries()) != 0 {
			t.Errorf("ListVolumes = %v, %v", list, err)
		}
		if _, err := d.NodeGetVolumeStats(ctx,
			&csi.NodeGetVolumeStatsRequest{VolumeId: handle(1), VolumePath: d.path("inline")}); err != nil {
			t.Errorf("stats of an inline volume: %v", err)
		}
		_, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: handle(1), TargetPath: d.path("second"),
			VolumeCapability: capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER),
			VolumeContext:    map[string]string{ephemeralKey: "true", "size": "10Mi"},
		})
		d.want(codes.FailedPrecondition, err)
		// No PersistentVolume can use the volume by its handle.
		_, err = d.NodeStageVolume(ctx,
			&csi.NodeStageVolumeRequest{VolumeId: handle(1), StagingTargetPath: d.path("staging"),
				VolumeCapability: capability(sharedMode)})
		d.want(codes.NotFound, err)
		_, err = d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: handle(1), StagingTargetPath: d.path("inline"), TargetPath: d.path("second"),
			VolumeCapability: capability(sharedMode),
		})
		d.want(codes.NotFound, err)
		if exists(d.path("second")) {
			t.Error("an inline volume was published to another pod")
		}
		_, err = d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: handle(1)})
		d.want(codes.NotFound, err)
		_, err = d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: handle(1)})
		d.want(codes.NotFound, err)
		_, err = d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: handle(1)})
		d.want(codes.OK, err)
		if volumes() != 1 {
			t.Error("DeleteVolume deleted an inline volume")
		}
		d.restart()
		for range 3 {
			d.want(codes.OK, unpublish(1))
		}
		if volumes() != 0 || exists(d.path("inline")) {
			t.Error("the inline volume still exists after NodeUnpublishVolume")
		}
		if d.hasImages() {
			d.want(codes.OK, inline(2, map[string]string{"size": "5M", "kind": "image"})) // not a multiple of 4096
			d.want(codes.OK, unpublish(2))
		}
	})
}

func TestAnInlineVolumeThatCannotBeMounted(t *testing.T) {
	fail := errors.New("on demand")
	d := startDriver(t)
	fake := d.mounter.(*mountertest.Fake)
	inline := func() error {
		_, err := d.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
			VolumeId: handle(1), TargetPath: d.path("inline"), VolumeCapability: capability(sharedMode),
			VolumeContext: map[string]string{ephemeralKey: "true"},
		})
		return err
	}
	data := filepath.Join(d.root, "volumes", "*", "data")
	fake.Err = fail
	d.want(codes.Internal, inline())
	if left, _ := filepath.Glob(data); len(left) != 0 {
		t.Errorf("a volume that was never mounted still exists: %v", left)
	}
	fake.Err = nil
	d.want(codes.OK, inline())
	if err := fake.Unmount(context.Background(), d.path("inline")); err != nil { // the machine reboots
		t.Fatal(err)
	}
	fake.Err = fail
	d.want(codes.Internal, inline())
	if left, _ := filepath.Glob(data); len(left) != 1 {
		t.Error("a volume with a pod's data was deleted because it could not be mounted")
	}
	_, err := d.NodeUnpublishVolume(context.Background(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: handle(1), TargetPath: d.path("inline")})
	d.want(codes.Internal, err)
	if left, _ := filepath.Glob(data); len(left) != 1 {
		t.Error("a volume was deleted that could not be unmounted")
	}
}

// The author of a pod writes the attributes of an inline volume. They cannot set another namespace,
// and so not use the share of another namespace.
func TestTheNamespaceOfAnInlineVolumeIsThePods(t *testing.T) {
	o, err := inlineOptions(map[string]string{
		"csi.storage.k8s.io/pvc/namespace": "other", "csi.storage.k8s.io/volumesnapshot/namespace": "other",
		"csi.storage.k8s.io/volumegroupsnapshot/namespace": "other", "csi.storage.k8s.io/pod.namespace": "own",
	}, volumeCapability{})
	if err != nil || o.Namespace != "own" {
		t.Errorf("the namespace is %q, %v, want the pod's", o.Namespace, err)
	}
}

func TestTheHandleOfAnInlineVolumeIsTheKubelets(t *testing.T) {
	d := startDriver(t)
	v := d.create("v", capability(sharedMode))
	for _, id := range []string{v.id, "csi-1", "..", handle(1) + "x"} {
		_, err := d.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: d.path("inline"), VolumeCapability: capability(sharedMode),
			VolumeContext: map[string]string{ephemeralKey: "true"},
		})
		d.want(codes.InvalidArgument, err)
	}
	if len(d.mounter.(*mountertest.Fake).Mounts()) != 0 || exists(d.path("inline")) {
		t.Error("something was mounted")
	}
}

// sabotaged is a Mounter that calls a function before it mounts.
type sabotaged struct {
	mounter.Mounter
	before func()
}

func (s *sabotaged) Mount(ctx context.Context, m mounter.Mount, path string) error {
	s.before()
	return s.Mounter.Mount(ctx, m, path)
}

func TestPublishWhileTheStagingPathIsUnmounted(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		bad := &sabotaged{d.mounter, func() {
			if err := d.mounter.Unmount(context.Background(), v.staging); err != nil {
				t.Error(err)
			}
		}}
		n := &node{backend: d.backend, mounter: bad, topology: &topology{}, records: &stagingRecords{}}
		_, err := n.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: d.path("one"), VolumeCapability: v.capability,
		})
		if !errors.Is(err, errPrecondition) || exists(d.path("one")) {
			t.Errorf("publish = %v, target exists: %v: a pod would write to the disk of the node", err,
				exists(d.path("one")))
		}
		d.want(codes.OK, v.unstage())
	})
}

func TestStageWithoutARecordMountsNothing(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(singleMode))
		notOnWindows(t, "an open directory cannot be removed there")
		if err := os.RemoveAll(d.path("state", stagingRecordsDir)); err != nil {
			t.Fatal(err)
		}
		err := v.stage()
		d.want(codes.Internal, err)
		if !strings.Contains(err.Error(), d.path("state", stagingRecordsDir)) {
			t.Errorf("%v does not name the state directory", err)
		}
		if users, err := d.mounter.MountPointsOf(v.data()); err != nil || len(users) != 0 {
			t.Errorf("mounted at %v, %v", users, err)
		}
		d.restart()
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.unstage())
	})
}

func TestAFailedStageLeavesNoRecord(t *testing.T) {
	d := startDriver(t)
	v := d.create("v", capability(sharedMode))
	fake := d.mounter.(*mountertest.Fake)
	fake.Err = errors.New("on demand")
	d.want(codes.Internal, v.stage())
	fake.Err = nil
	if left, err := os.ReadDir(d.path("state", stagingRecordsDir)); err != nil || len(left) != 0 {
		t.Errorf("the records are %v, %v", left, err)
	}
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.unstage())
}

// TestALostStagingMountIsReported also by the next driver, but not after a boot, which ends all
// mounts.
func TestALostStagingMountIsReported(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(singleMode))
		reasons := func(want ...string) {
			t.Helper()
			health, err := d.NodeGetVolumeHealth(context.Background(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
			var got []string
			for _, s := range health.GetVolumeHealth().GetHealthStatuses() {
				got = append(got, s.GetReason())
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("health is %v, %v, want %q", health, err, want)
			}
		}
		remembered := []string{"StagingMountLost"}
		if bootID() == "" || d.links { // without a mount, Windows has no staging path
			remembered = nil
		}
		reasons()
		d.want(codes.OK, v.stage())
		reasons()
		if err := d.mounter.Unmount(context.Background(), v.staging); err != nil {
			t.Fatal(err)
		}
		reasons("StagingMountLost")
		d.restart()
		reasons(remembered...)
		d.want(codes.OK, v.stage())
		reasons()
		d.stop()
		if err := d.mounter.Unmount(context.Background(), v.staging); err != nil {
			t.Fatal(err)
		}
		d.start()
		reasons(remembered...)
		d.stop()
		d.reboot()
		d.start()
		reasons()
		v.capability = capability(sharedMode)
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.unstage())
		reasons()
	})
}

// A container's subPath mounts a part of a volume, or all of it, a second time below the kubelet
// directory.
func TestMountsOfContainersAreNoTargetPaths(t *testing.T) {
	d := startReal(t)
	v := d.create("v", capability(singleMode))
	d.want(codes.OK, v.stage())
	d.want(codes.OK, v.publish("one"))
	inline := func() error {
		_, err := d.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
			VolumeId: handle(1), TargetPath: d.path("inline"), VolumeCapability: capability(singleMode),
			VolumeContext: map[string]string{ephemeralKey: "true"},
		})
		return err
	}
	d.want(codes.OK, inline())
	for _, target := range []string{"one", "inline"} {
		for _, sub := range []string{"", "sub"} {
			from, at := d.path(target, sub), d.path("subpath-"+target+sub)
			if err := errors.Join(os.MkdirAll(from, 0o755), os.Mkdir(at, 0o755), bindMount(from, at)); err != nil {
				t.Fatal(err)
			}
			defer d.mounter.Unmount(context.Background(), at)
		}
	}
	for range 2 {
		d.want(codes.OK, v.publish("one"))
		d.want(codes.OK, inline())
		d.restart()
	}
	for _, at := range []string{"subpath-one", "subpath-onesub", "subpath-inline", "subpath-inlinesub"} {
		if err := d.mounter.Unmount(context.Background(), d.path(at)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.NodeUnpublishVolume(context.Background(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: handle(1), TargetPath: d.path("inline")})
	d.want(codes.OK, err)
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

func TestAnotherVolumesRecordIsNotLost(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v, w := d.create("v", capability(singleMode)), d.create("w", capability(sharedMode))
		d.want(codes.OK, v.stage())
		before, _ := d.driver.node.records.recordAt(v.staging)
		w.staging = v.staging
		d.want(codes.AlreadyExists, w.stage())
		if after, _ := d.driver.node.records.recordAt(v.staging); after != before {
			t.Errorf("the record is %+v, was %+v", after, before)
		}
		// as an older release wrote it
		if _, err := d.driver.node.records.put(v.staging, stagingRecord{VolumeID: w.id}); err != nil {
			t.Fatal(err)
		}
		v.capability = capability(sharedMode)
		d.want(codes.FailedPrecondition, v.publish("one"))
		d.want(codes.OK, v.unstage())
	})
}

func TestHealthWhileAVolumeIsStagedAndUnstaged(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		d.skipSlowLinks()
		v := d.create("v", capability(sharedMode))
		done := make(chan struct{})
		defer func() { <-done }()
		go func() {
			defer close(done)
			for range 200 {
				if err := errors.Join(v.stage(), v.unstage()); err != nil {
					t.Error(err)
				}
			}
		}()
		for busy := true; busy; {
			select {
			case <-done:
				busy = false
			default:
			}
			health, err := d.NodeGetVolumeHealth(context.Background(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
			if s := health.GetVolumeHealth().GetHealthStatuses(); err != nil || len(s) != 0 {
				t.Fatalf("health is %v, %v", health, err)
			}
		}
	})
}

func TestAnotherStagingPathIsNoTarget(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(singleMode))
		first := v.staging
		d.want(codes.OK, v.stage())
		v.staging = d.path("second-staging")
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		d.want(codes.FailedPrecondition, v.publish("two"))
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
		v.staging = first
		d.want(codes.OK, v.unstage())
	})
}

func TestUnpublishAndUnstageWithADamagedRecord(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		record := filepath.Join(d.root, "volumes", v.id, "record.json")
		good, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"{", `{"version":9}`} {
			if err := os.WriteFile(record, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			d.restart()
			d.want(codes.OK, v.unpublish("one"))
			d.want(codes.OK, v.unstage())
			d.want(codes.Internal, v.delete())
			if err := os.WriteFile(record, good, 0o600); err != nil {
				t.Fatal(err)
			}
			d.restart()
			d.want(codes.OK, v.stage())
			d.want(codes.OK, v.publish("one"))
		}
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
		d.want(codes.OK, v.delete())
	})
}

func TestStatsAreOfTheVolumeAndItsPath(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v, w := d.create("v", capability(sharedMode)), d.create("w", capability(sharedMode))
		for _, x := range []*volume{v, w} {
			d.want(codes.OK, x.stage())
		}
		d.want(codes.OK, v.publish("one"))
		stats := func(id, path string) error {
			_, err := d.NodeGetVolumeStats(context.Background(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
			return err
		}
		d.want(codes.OK, stats(v.id, d.path("one")))
		d.want(codes.OK, stats(v.id, v.staging))
		d.want(codes.NotFound, stats(v.id, w.staging))
		d.want(codes.NotFound, stats(v.id, d.path("none")))
		d.want(codes.NotFound, stats(v.id, d.root))
		d.want(codes.NotFound, stats(v.id, v.data()))
		d.want(codes.NotFound, stats("none", d.path("one")))
		d.want(codes.InvalidArgument, stats(v.id, ""))
		d.want(codes.InvalidArgument, stats("", d.path("one")))
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.NotFound, stats(v.id, d.path("one")))
		d.want(codes.OK, errors.Join(v.unstage(), w.unstage()))
	})
}

func TestARestartedDriverKnowsStagedVolumes(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.restart()
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		start := d.restart
		if runtime.GOOS == "windows" { // where no open directory can be removed
			d.stop()
			start = d.start
		}
		if err := os.RemoveAll(d.path("state")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(d.path("state"), 0o700); err != nil {
			t.Fatal(err)
		}
		start() // the mount table of the kernel is enough
		d.want(codes.OK, v.publish("two"))
		for _, target := range []string{"one", "two"} {
			d.want(codes.OK, v.unpublish(target))
		}
		d.want(codes.OK, v.unstage())
		d.want(codes.OK, v.delete())
	})
}

func TestUnpublishAndUnstageWithoutTheRoot(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		v := d.create("v", capability(sharedMode))
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		inline := &csi.NodePublishVolumeRequest{
			VolumeId: handle(1), TargetPath: d.path("inline"), VolumeCapability: capability(sharedMode),
			VolumeContext: map[string]string{ephemeralKey: "true"},
		}
		_, err := d.NodePublishVolume(context.Background(), inline)
		d.want(codes.OK, err)
		d.stop()
		away := d.root + ".away"
		d.renameClosed(d.root, away)
		d.serve()
		d.want(codes.Unavailable, v.publish("two"))
		d.want(codes.OK, v.unpublish("one"))
		d.want(codes.OK, v.unstage())
		end := func() error {
			_, err := d.NodeUnpublishVolume(context.Background(),
				&csi.NodeUnpublishVolumeRequest{VolumeId: handle(1), TargetPath: d.path("inline")})
			return err
		}
		d.want(codes.Unavailable, end()) // the volume is unmounted, but its data cannot be deleted yet
		d.renameClosed(away, d.root)
		d.ready()
		d.want(codes.OK, end())
		d.want(codes.OK, v.delete())
	})
}
