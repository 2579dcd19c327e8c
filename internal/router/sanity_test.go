package router

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/causeway-csi/causeway/internal/sized"
	"github.com/causeway-csi/causeway/pkg/driver"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// ids are IDs that a node could have made.
type ids struct{ sanity.DefaultIDGenerator }

func (ids) GenerateUniqueValidVolumeID() string {
	return volumeid.New(volumeid.Volume, "a", uuid.NewString())
}

// mayBeSkipped are the only reasons for which csi-sanity may skip specs: hostpath attaches nothing.
var mayBeSkipped = []string{
	"ControllerPublishVolume not supported",
	"ControllerUnpublishVolume not supported",
	"Controller Publish, UnpublishVolume not supported",
}

// TestSanity runs csi-sanity against a router before three nodes, all of which have volumes.
// csi-sanity knows a single Node service, so its volumes must be on that node: the node with most
// room. It expects unique names of snapshots over all nodes. They are unique on each node, which is
// enough where all are on the same node.
func TestSanity(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	for _, node := range []string{"b", "c"} {
		for i := range 3 {
			req := create("filler "+node+string(rune('0'+i)), node)
			req.CapacityRange.RequiredBytes = 1 << 30
			if _, err := c.CreateVolume(context.Background(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := c.all()
	endpoint := c.whole("a")
	ginkgo.Describe("router", func() {
		config := sanity.NewTestConfig()
		config.Address = endpoint
		config.TargetPath, config.StagingPath = filepath.Join(c.nodes["a"].dir, "kubelet",
			"target"), filepath.Join(c.nodes["a"].dir, "kubelet", "staging")
		config.TestVolumeSize = 64 << 20
		config.IDGen = ids{}
		config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(sized.Answers))
		config.TestVolumeParameters = map[string]string{"kind": "image"}
		config.TestVolumeMutableParameters = map[string]string{"label": "mine"}
		sanity.GinkgoTest(&config)
	})
	passed, skipped := 0, map[string]int{}
	ginkgo.ReportAfterSuite("what ran", func(report types.Report) {
		for _, spec := range report.SpecReports {
			switch {
			case spec.LeafNodeType != types.NodeTypeIt:
			case spec.State == types.SpecStatePassed:
				passed++
			case spec.State == types.SpecStateSkipped:
				skipped[spec.Failure.Message]++
			case spec.Failed():
				t.Errorf("%s: %s", spec.FullText(), spec.FailureMessage())
			}
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = true, true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	for reason, n := range skipped {
		if !slices.Contains(mayBeSkipped, reason) {
			t.Errorf("%d specs were skipped: %s", n, reason)
		}
	}
	if passed < 80 { // of 103; the others need a skipped capability
		t.Errorf("%d specs passed", passed)
	}
	if after := c.all(); !slices.Equal(after, before) || len(c.onDisk("snapshots"))+len(c.onDisk("groups")) > 0 {
		t.Errorf("left: volumes %q, snapshots %q, groups %q", after, c.onDisk("snapshots"), c.onDisk("groups"))
	}
	t.Logf("%d specs passed, skipped were %v", passed, maps.Collect(maps.All(skipped)))
}

// whole serves the router's services, and the Node service of a node, at the same endpoint.
func (c *cluster) whole(node string) (endpoint string) {
	c.Helper()
	toNode, err := grpc.NewClient(c.nodes[node].socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { toNode.Close() })
	interceptors, err := driver.NewInterceptors(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		c.Fatal(err)
	}
	server := interceptors.Server(grpc.ChainUnaryInterceptor(func(ctx context.Context, req any,
		info *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler) (any, error) {
		if !strings.HasPrefix(info.FullMethod, "/csi.v1.Node/") {
			return handler(ctx, req)
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(info.FullMethod[1:], "/", ".")))
		if err != nil {
			return nil, err
		}
		answer, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Output().FullName())
		if err != nil {
			return nil, err
		}
		resp := answer.New().Interface()
		return resp, toNode.Invoke(ctx, info.FullMethod, req, resp)
	}))
	c.router.Register(server)
	csi.RegisterNodeServer(server, csi.UnimplementedNodeServer{})
	dir, err := os.MkdirTemp("", "wh")
	if err != nil {
		c.Fatal(err)
	}
	endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	l, err := driver.Listen(endpoint, false)
	if err != nil {
		c.Fatal(err)
	}
	go server.Serve(l)
	c.Cleanup(func() { server.Stop(); os.RemoveAll(dir) })
	return endpoint
}
