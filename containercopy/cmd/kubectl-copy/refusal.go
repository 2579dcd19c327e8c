package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/causeway-csi/causeway/containercopy/api/options"
)

// errNoAPI: kube-apiserver does not know the API, or cannot reach its server.
var errNoAPI = errors.New("the cluster has no container copy, or it is not available: see kubectl get apiservice " +
	options.Version.Version + "." + options.Version.Group)

// busy reports whether an error is that of too many copies. RESOURCE_EXHAUSTED in a stream is another
// one, such as a full disk.
func busy(err error) bool { return apierrors.IsTooManyRequests(err) }

// explain returns the reason of a refused connection.
func explain(err error) error {
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		err = upgrade.Cause
	}
	var api *apierrors.StatusError
	if errors.As(err, &api) {
		s := api.ErrStatus
		switch {
		case s.Code == http.StatusNotFound && s.Message == notServed:
			return fmt.Errorf("%w (%w)", errNoAPI, api)
		case s.Code == http.StatusForbidden && s.Details != nil && s.Details.Group == options.Version.Group:
			// kube-apiserver asks for the right before it looks for the API.
			return fmt.Errorf("%w (or %w)", api, errNoAPI)
		}
		return api
	}
	if api := plainStatus(err.Error()); api != nil {
		if api.ErrStatus.Code == http.StatusNotFound || api.ErrStatus.Code == http.StatusServiceUnavailable {
			return fmt.Errorf("%w (%w)", errNoAPI, api)
		}
		return api
	}
	return err
}

// notServed is the message of a Status for a resource that a server does not have.
const notServed = "the server could not find the requested resource"

var (
	// badHandshake is the text of an error of client-go whose body is no Status.
	badHandshake = regexp.MustCompile(`(?s)^websocket: bad handshake \((\d{3})[^)]*\)(?:: (.*))?$`)
	// statusMessage is the message in the start of a Status, of which websocket reads 1024 bytes.
	statusMessage = regexp.MustCompile(`^\{"kind":"Status",.*"message":("(?:[^"\\]|\\.)*)`)
)

// plainStatus returns the error of a refused handshake whose body is a plain text, as those of the
// proxy and of the priority levels of kube-apiserver are, or a long Status. Nil: another error.
func plainStatus(text string) *apierrors.StatusError {
	m := badHandshake.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	code, err := strconv.Atoi(m[1])
	if err != nil {
		return nil
	}
	s := metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Message: m[2]}
	if cut := statusMessage.FindStringSubmatch(m[2]); cut != nil {
		var message string
		if json.Unmarshal([]byte(cut[1]+`"`), &message) == nil {
			s.Message = message
		}
	}
	if s.Message == "" {
		s.Message = fmt.Sprintf("the server returned %d %s", code, http.StatusText(code))
	}
	return &apierrors.StatusError{ErrStatus: s}
}
