package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// identity is the Identity service. CSI spec v1.13, Identity Service RPC.
type identity struct {
	csi.UnimplementedIdentityServer
	cfg          Config
	prober       *prober
	capabilities *csi.GetPluginCapabilitiesResponse
}

func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.cfg.Name, VendorVersion: i.cfg.Release}, nil
}

func (i *identity) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return i.capabilities, nil
}

// Probe reports whether the backend is ready. It is cheap enough for a call every second.
func (i *identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ready, err := i.prober.probe(ctx)
	if err != nil {
		return nil, err
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}
