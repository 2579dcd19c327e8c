package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestLabelsOfTheKubelet: the kubelet adds the SELinux label of the pod to the mount flags of stage
// and publish, and not to those of CreateVolume. An image takes it, and a volume that is staged
// with a label is not published with another. A directory rejects it.
func TestLabelsOfTheKubelet(t *testing.T) {
	const label, other = `context="system_u:object_r:container_file_t:s0:c1,c2"`,
		`context="system_u:object_r:container_file_t:s0:c3,c4"`
	d := startDriver(t)
	dir := d.create("directory", capability(sharedMode))
	dir.capability = capability(sharedMode, label)
	d.want(codes.InvalidArgument, dir.stage())

	v := d.imageOf("image", "ext4", 8<<20, nil)
	d.want(codes.OK, v.unstage())
	with := func(flags ...string) *csi.VolumeCapability {
		vc := capability(sharedMode, flags...)
		vc.GetMount().FsType = "ext4"
		return vc
	}
	v.capability = with(label)
	for range 2 {
		d.want(codes.OK, v.stage())
		d.want(codes.OK, v.publish("one"))
		d.restart()
	}
	for _, vc := range []*csi.VolumeCapability{with(other), with()} {
		v.capability = vc
		d.want(codes.AlreadyExists, v.stage())
		d.want(codes.AlreadyExists, v.publish("one"))
		d.want(codes.FailedPrecondition, v.publish("two"))
	}
	v.capability = with(label)
	d.want(codes.OK, v.publish("two"))
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unpublish("two"))
	d.want(codes.OK, v.unstage())
	for _, bad := range []string{`context="a:b:c",dev`, `context="a:b:c`, "context=", `fscontext="a:b:c"`} {
		v.capability = with(bad)
		d.want(codes.InvalidArgument, v.stage())
	}
	v.capability = with(other)
	d.want(codes.OK, v.stage())
}
