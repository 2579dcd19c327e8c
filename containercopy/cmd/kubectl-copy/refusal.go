package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/containercopy/api/options"
)

// errNoAPI: kube-apiserver does not know the API, or cannot reach its server.
var errNoAPI = errors.New("the cluster has no container copy, or it is not available: see kubectl get apiservice " +
	options.Version.Version + "." + options.Version.Group)

// busy reports whether an error is that of too many copies. RESOURCE_EXHAUSTED in a stream is
// another one, such as a full disk.
func busy(err error) bool { return apierrors.IsTooManyRequests(err) }

// notServed is the message of a Status for a resource that a server does not have.
const notServed = "the server could not find the requested resource"

// refusal returns the error of a refused handshake.
func refusal(answer *http.Response) error {
	status, isStatus := statusIn(answer)
	api := &apierrors.StatusError{ErrStatus: status}
	switch code := status.Code; {
	case code == http.StatusNotFound && (!isStatus || status.Message == notServed),
		code == http.StatusServiceUnavailable && !isStatus:
		return fmt.Errorf("%w (%w)", errNoAPI, api)
	case code == http.StatusForbidden && status.Details != nil && status.Details.Group == options.Version.Group:
		// kube-apiserver asks for the right before it looks for the API.
		return fmt.Errorf("%w: the ClusterRoles of container copy have this right, if it is installed", api)
	}
	return api
}

// statusMessage is the message in a part of a Status.
var statusMessage = regexp.MustCompile(`^\{"kind":"Status",.*"message":("(?:[^"\\]|\\.)*)`)

// statusIn returns the Status of an answer. It reports false for a body that is a plain text, as
// those of the proxy and of the priority levels of kube-apiserver are, and for a Status that is
// cut.
func statusIn(answer *http.Response) (s metav1.Status, ok bool) {
	content := body(answer)
	if json.Unmarshal(content, &s) == nil && s.Kind == "Status" && s.Code != 0 {
		return s, true
	}
	s = metav1.Status{Status: metav1.StatusFailure, Code: int32(answer.StatusCode),
		Message: string(bytes.TrimSpace(content))}
	if cut := statusMessage.FindSubmatch(content); cut != nil {
		var message string
		if json.Unmarshal(append(cut[1], '"'), &message) == nil {
			s.Message = message
		}
	}
	if s.Message == "" {
		s.Message = fmt.Sprintf("the server returned %d %s", s.Code, http.StatusText(answer.StatusCode))
	}
	return s, false
}
