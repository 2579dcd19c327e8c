package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

// shareStorage is storage whose volumes are directories of a share. Its server accepts a single
// password.
type shareStorage struct {
	*memory.Backend
	mu       sync.Mutex
	password string
	silent   bool
	reached  []string // sources of calls of Reach
}

func (s *shareStorage) set(change func(*shareStorage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *shareStorage) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.silent:
		return mounter.Mount{}, fmt.Errorf("%w: the server is silent", backend.ErrUnavailable)
	case a.Secrets["password"] != s.password:
		return mounter.Mount{}, fmt.Errorf("%w: the server rejects the password", backend.ErrUnauthenticated)
	}
	if _, err := s.Backend.Get(ctx, id, nil); err != nil {
		return mounter.Mount{}, err
	}
	return mounter.Mount{Kind: mounter.Share, Source: "//server/share/" + id, Options: a.Options, ReadOnly: a.ReadOnly,
		Credentials: mounter.Credentials{Username: "alice", Password: s.password}}, nil
}

func (s *shareStorage) Reach(ctx context.Context, m mounter.Mount) ([]backend.Condition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached = append(s.reached, m.Source)
	if _, ok := ctx.Deadline(); !ok {
		return nil, fmt.Errorf("the context of Reach has no deadline")
	}
	if m.Credentials != (mounter.Credentials{}) {
		return nil, fmt.Errorf("the Mount has credentials")
	}
	if s.silent {
		return []backend.Condition{{Severity: backend.Inaccessible, Reason: "ServerSilent", Message: "server"}}, nil
	}
	return nil, nil
}

func (s *shareStorage) Owned(m mounter.Mount, gid uint32) (mounter.Mount, error) {
	m.Options = append(slices.Clone(m.Options), fmt.Sprintf("gid=%d", gid))
	return m, nil
}

func (s *shareStorage) Usage(context.Context, string) (mounter.Usage, bool, error) {
	return mounter.Usage{}, false, nil
}

// startWithShares starts a driver with a volume on a share.
func startWithShares(t *testing.T) (*shareStorage, *testDriver, *volume) {
	s := &shareStorage{password: "first-password"}
	d := startDriver(t, inMemory, func(d *testDriver) { s.Backend = d.memory; d.disks = s })
	return s, d, d.create("v", capability(sharedMode))
}

func (v *volume) stageWith(password string) error {
	_, err := v.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability, VolumeContext: v.context,
		Secrets: map[string]string{"password": password},
	})
	return err
}

func withPassword(password string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { r.Secrets = map[string]string{"password": password} }
}

// volumeReasons returns the reasons of the conditions of a volume on the node.
func (v *volume) volumeReasons() string {
	v.Helper()
	resp, err := v.NodeGetVolumeHealth(context.Background(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	if err != nil {
		v.Fatal(err)
	}
	var reasons []string
	for _, s := range resp.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, s.GetReason())
	}
	return strings.Join(reasons, " ")
}

func TestAShareIsPublishedWithoutItsServer(t *testing.T) {
	s, d, v := startWithShares(t)
	d.want(codes.Unauthenticated, v.stageWith("wrong"))
	d.want(codes.OK, v.stageWith("first-password"))
	s.set(func(s *shareStorage) { s.silent = true })
	d.want(codes.OK, v.publish("one"))
	d.want(codes.OK, v.publish("one", withPassword("first-password")))
	if got := v.volumeReasons(); got != "ServerSilent" {
		t.Errorf("the conditions are %q", got)
	}
	resp, err := d.NodeGetStorageHealth(context.Background(), &csi.NodeGetStorageHealthRequest{})
	if err != nil || len(resp.GetBackendHealth()) != 1 ||
		resp.GetBackendHealth()[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
		t.Errorf("the health of the storage is %v, %v", resp, err)
	}
	d.want(codes.OK, v.stats(d.path("one")))
	d.restart()
	d.want(codes.OK, v.publish("two"))
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unpublish("two"))
	d.want(codes.OK, v.unstage())
	s.set(func(s *shareStorage) { s.silent = false })
	_, err = d.NodeGetVolumeHealth(context.Background(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	d.want(codes.NotFound, err)
}

// A record of a staged volume, the log and an answer contain no password.
// TestALostMountOfAShare is reported by the next driver, which does not contact its server for it.
func TestALostMountOfAShare(t *testing.T) {
	if bootID() == "" {
		t.Skip("this system does not tell its boots, and the next driver forgets the mount")
	}
	s, d, v := startWithShares(t)
	d.want(codes.OK, v.stageWith("first-password"))
	if err := d.mounter.Unmount(context.Background(), v.staging); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(v.staging, 0o755); err != nil { // the directory of the kubelet stays
		t.Fatal(err)
	}
	d.restart()
	s.set(func(s *shareStorage) { s.reached = nil })
	if got := v.volumeReasons(); got != "StagingMountLost" {
		t.Errorf("the conditions are %q", got)
	}
	if _, err := d.NodeGetStorageHealth(context.Background(), &csi.NodeGetStorageHealthRequest{}); err != nil {
		t.Error(err)
	}
	if len(s.reached) > 0 {
		t.Errorf("the driver contacted %q", s.reached)
	}
	d.want(codes.OK, v.stageWith("first-password"))
	if got := v.volumeReasons(); got != "" {
		t.Errorf("staged again: the conditions are %q", got)
	}
	d.want(codes.OK, v.unstage())
}

func TestThePasswordOfAShareIsInNoFile(t *testing.T) {
	_, d, v := startWithShares(t)
	d.want(codes.OK, v.stageWith("first-password"))
	d.want(codes.OK, v.publish("one", withPassword("first-password")))
	err := filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "first-password") {
			t.Errorf("%s contains the password", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if text := d.log.String(); strings.Contains(text, "first-password") || strings.Contains(text, "alice") {
		t.Errorf("the log contains credentials: %s", text)
	}
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

func TestARepeatedPublishChangesThePassword(t *testing.T) {
	s, d, v := startWithShares(t)
	d.want(codes.OK, v.stageWith("first-password"))
	d.want(codes.OK, v.publish("one", withPassword("first-password")))
	password := func() string { return d.mounter.(*mountertest.Fake).Mounts()[v.staging].Credentials.Password }

	d.want(codes.OK, v.publish("one", withPassword("too-early"))) // the server does not have it yet
	if got := v.volumeReasons(); got != "CredentialsNotVerified" || password() != "first-password" {
		t.Errorf("with a wrong password: conditions %q, password %s", got, password())
	}
	s.set(func(s *shareStorage) { s.password = "second-password" })
	d.want(codes.OK, v.publish("one", withPassword("second-password")))
	if got := v.volumeReasons(); got != "" || password() != "second-password" {
		t.Errorf("with the new password: conditions %q, password %s", got, password())
	}
	d.restart()
	s.set(func(s *shareStorage) { s.password = "third-password" })
	d.want(codes.OK, v.publish("one")) // no secrets: nothing changes
	if password() != "second-password" {
		t.Errorf("a publish without secrets: password %s", password())
	}
	d.want(codes.OK, v.publish("one", withPassword("third-password")))
	if password() != "third-password" {
		t.Errorf("after a restart: password %s", password())
	}
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

// A kernel that keeps the password of a mount is a condition of the volume, also in the next
// process of the driver, until the volume is staged with the new password.
func TestAPasswordThatTheKernelKeeps(t *testing.T) {
	s, d, v := startWithShares(t)
	d.mounter.(*mountertest.Fake).Keeps = true
	d.want(codes.OK, v.stageWith("first-password"))
	d.want(codes.OK, v.publish("one"))
	d.restart()
	d.want(codes.OK, v.publish("one", withPassword("first-password")))
	if got := v.volumeReasons(); got != "" {
		t.Errorf("with the password of the mount: conditions %q", got)
	}
	s.set(func(s *shareStorage) { s.password = "second-password" })
	check := func(after string) {
		t.Helper()
		if got := v.volumeReasons(); got != "CredentialsNotChanged" {
			t.Errorf("after %s: conditions %q, want CredentialsNotChanged", after, got)
		}
	}
	d.want(codes.OK, v.publish("one", withPassword("second-password")))
	check("a publish")
	d.want(codes.OK, v.stageWith("second-password"))
	check("a repeated stage")
	d.restart()
	d.want(codes.OK, v.publish("one", withPassword("second-password")))
	check("a restart")
	d.restart()
	d.want(codes.OK, v.stageWith("second-password"))
	check("a restart and a repeated stage")
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
	d.want(codes.OK, v.stageWith("second-password"))
	d.want(codes.OK, v.publish("one", withPassword("second-password")))
	if got := v.volumeReasons(); got != "" {
		t.Errorf("after a new stage: conditions %q", got)
	}
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unstage())
}

func TestTheGroupOfAVolume(t *testing.T) {
	_, d, v := startWithShares(t)
	group := func(gid string) *csi.VolumeCapability {
		c := capability(sharedMode)
		c.GetMount().VolumeMountGroup = gid
		return c
	}
	for _, bad := range []string{"-1", "wheel", "4294967295", "1,uid=0", "0x10"} {
		v.capability = group(bad)
		d.want(codes.InvalidArgument, v.stageWith("first-password"))
	}
	v.capability = group("4242")
	d.want(codes.OK, v.stageWith("first-password"))
	if options := d.mounter.(*mountertest.Fake).Mounts()[v.staging].Options; !slices.Contains(options, "gid=4242") {
		t.Errorf("the options of the mount are %q", options)
	}
	d.want(codes.OK, v.publish("one"))
	v.capability = group("4243")
	d.want(codes.FailedPrecondition, v.publish("two"))
	d.want(codes.AlreadyExists, v.publish("one"))
	v.capability = capability(sharedMode)
	d.want(codes.FailedPrecondition, v.publish("two"))
	v.capability = group("4242")
	d.restart()
	d.want(codes.OK, v.publish("two"))
	d.want(codes.OK, v.unpublish("one"))
	d.want(codes.OK, v.unpublish("two"))
	d.want(codes.OK, v.unstage())
}

// The servers of many volumes are asked once for each source.
func TestTheServersOfStagedVolumesAreReached(t *testing.T) {
	s, d, v := startWithShares(t)
	w := d.create("w", capability(sharedMode))
	for _, v := range []*volume{v, w} {
		d.want(codes.OK, v.stageWith("first-password"))
	}
	if _, err := d.NodeGetStorageHealth(context.Background(), &csi.NodeGetStorageHealthRequest{}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(s.reached)
	want := []string{"//server/share/" + v.id, "//server/share/" + w.id}
	slices.Sort(want)
	if !slices.Equal(s.reached, want) {
		t.Errorf("reached %q, want %q", s.reached, want)
	}
	for _, v := range []*volume{v, w} {
		d.want(codes.OK, v.unstage())
	}
}
