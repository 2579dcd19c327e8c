// Package apiserver provides a real API server without controllers, for tests of validation.
package apiserver

import (
	"os"
	"path/filepath"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// Server runs until its test ends. A copy with another T is for a subtest.
type Server struct {
	*testing.T
	Client  kubernetes.Interface
	Kubectl string   // the program
	Home    string   // a directory of the test's own
	Env     []string // of programs that are to reach it: KUBECONFIG, HOME, and a PATH with kubectl
}

// Start starts a Server.
func Start(t *testing.T) Server {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{WithoutControllerManager: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	bin, err := components.Build(t.Context(), os.Stderr, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := Server{T: t, Client: client, Kubectl: filepath.Join(bin, "kubectl"), Home: t.TempDir()}
	s.Env = append(os.Environ(), "KUBECONFIG="+plane.Kubeconfig(), "HOME="+s.Home,
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return s
}

// Namespace makes a namespace with labels.
func (s *Server) Namespace(name string, labels map[string]string) {
	s.Helper()
	if _, err := s.Client.CoreV1().Namespaces().Create(s.Context(),
		&core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}, meta.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// Account makes a service account, as no controller does it here. Without it no pod is admitted.
func (s *Server) Account(namespace, name string) {
	s.Helper()
	if _, err := s.Client.CoreV1().ServiceAccounts(namespace).Create(s.Context(),
		&core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}
