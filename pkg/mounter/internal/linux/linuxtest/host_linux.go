package linuxtest

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
)

// Main runs the tests of a package in a mount namespace of its own. In a helper process of a Host,
// and in a process that a test has started to die, it does not return.
func Main(m *testing.M) {
	helper.Main(linux.HelperTasks())
	hang.Main()
	klog.LogToStderr(false) // mount-utils logs each call
	klog.SetOutput(io.Discard)
	if os.Getenv(AsFreezer) != "" {
		os.Exit(freezer())
	}
	if os.Getenv(AsMounter) != "" {
		os.Exit(mountAndDie())
	}
	noNamespace = namespace.Enter()
	code := m.Run()
	if freezerDir != "" {
		os.Remove(filepath.Join(freezerDir, "freezer"))
		os.Remove(freezerDir)
	}
	os.Exit(code)
}

// New returns the Host of this machine: see linux.New.
func New(dir, state string) (mounter.Host, error) {
	h, err := linux.New(dir, state)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// noNamespace is the reason why tests with real mounts cannot run.
var noNamespace error

// RealMounter returns a function that makes the Host of this machine.
func RealMounter(t *testing.T, change ...func(*linux.Host)) func(string) mounter.Host {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	return func(dir string) mounter.Host {
		m, err := New(dir, filepath.Join(filepath.Dir(dir), "frozen"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range change {
			c(m.(*linux.Host))
		}
		return m
	}
}
