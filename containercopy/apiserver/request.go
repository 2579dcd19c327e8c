package apiserver

import (
	"context"
	"encoding/hex"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
)

// copyRequest is a request for a copy whose user may exec in the pod.
type copyRequest struct {
	container string // name; empty: the default
	// call calls the agent, and returns the URL of the stream and the ID of the copy.
	call func(ctx context.Context, agent v1alpha1.ContainerCopyClient, at target) (url, id string, err error)
}

// prepare calls an agent. Errors: those of the API. A copy whose call takes too long ends a minute
// later, with its URL.
func (r copyRequest) prepare(ctx context.Context, a *agent, at target) (url, id string, err error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	url, id, err = r.call(limited, v1alpha1.NewContainerCopyClient(a), at)
	if err != nil {
		return "", "", statusOf(at.node, err)
	}
	return url, id, nil
}

// request checks a request. Errors: those of the API.
func (c *Copies) request(ctx context.Context, pod string, o runtime.Object) (copyRequest, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return copyRequest{}, apierrors.NewUnauthorized("the request has no user")
	}
	if err := c.mayExec(ctx, u, request.NamespaceValue(ctx), pod); err != nil {
		return copyRequest{}, err
	}
	caller := &v1alpha1.Caller{Name: u.GetName(), AuditId: audit.GetAuditIDTruncated(ctx)}
	switch o := o.(type) {
	case *options.PodCopyFromOptions:
		return from(o, caller), nil
	case *options.PodCopyToOptions:
		return to(o, caller)
	}
	return copyRequest{}, fmt.Errorf("options of type %T", o)
}

// mayExec asks for the right to exec in a pod: files of a container include its tokens and its
// programs, so a copy is equal to it.
func (c *Copies) mayExec(ctx context.Context, u user.Info, namespace, pod string) error {
	decision, reason, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: "create",
		Namespace: namespace, APIVersion: "v1", Resource: "pods", Subresource: "exec", Name: pod,
		ResourceRequest: true})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("the right to exec in the pod: %w", err))
	}
	text := fmt.Sprintf("a copy also needs the right to exec: user %q cannot create resource %q in API group %q "+
		"in the namespace %q", u.GetName(), "pods/exec", "", namespace)
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(pods, pod, fmt.Errorf("%s", text))
}

func from(o *options.PodCopyFromOptions, caller *v1alpha1.Caller) copyRequest {
	return copyRequest{o.Container, func(ctx context.Context, agent v1alpha1.ContainerCopyClient, at target) (
		url, id string, err error) {
		resp, err := agent.CopyFromContainer(ctx, &v1alpha1.CopyFromContainerRequest{ContainerId: at.container,
			Path: o.Path, Pod: at.pod, Sha256: o.SHA256, Caller: caller})
		return resp.GetUrl(), resp.GetCopyId(), err
	}}
}

// overwrites are the values of Overwrite.
var overwrites = map[string]v1alpha1.Overwrite{"": v1alpha1.Overwrite_NEVER, options.Never: v1alpha1.Overwrite_NEVER,
	options.Files: v1alpha1.Overwrite_FILES, options.Tree: v1alpha1.Overwrite_TREE}

func to(o *options.PodCopyToOptions, caller *v1alpha1.Caller) (copyRequest, error) {
	sum, err := hex.DecodeString(o.SHA256) // Parse has checked it
	if err != nil {
		return copyRequest{}, apierrors.NewBadRequest(err.Error())
	}
	req := &v1alpha1.CopyToContainerRequest{Path: o.Path, Sha256: sum, Sha256AtEnd: o.SHA256AtEnd,
		Overwrite: overwrites[o.Overwrite],
		Contents:  o.Contents, PreserveMode: o.PreserveMode, PreserveTimes: o.PreserveTimes,
		PreserveOwner: o.PreserveOwner, Caller: caller}
	if o.Size != nil && o.Checksum != nil {
		req.Declared, req.Size, req.Checksum = true, uint64(*o.Size), *o.Checksum
	}
	return copyRequest{o.Container, func(ctx context.Context, agent v1alpha1.ContainerCopyClient, at target) (
		url, id string, err error) {
		req.ContainerId, req.Pod = at.container, at.pod
		resp, err := agent.CopyToContainer(ctx, req)
		return resp.GetUrl(), resp.GetCopyId(), err
	}}, nil
}
