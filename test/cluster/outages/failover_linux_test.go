package outages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// failOver kills the processes of the controller's leader while it creates volumes on a frozen
// server, so that it can neither complete them nor give up its lease. The other replica creates
// them: each claim gets a volume, and each volume one directory.
func (s *scene) failOver() {
	const claims = 40
	leader := s.leader()
	s.must(s.server.Silence())
	resume := sync.OnceFunc(func() { s.must(s.server.Resume()) })
	s.Cleanup(resume)
	var objects, names []string
	for i := range claims {
		names = append(names, fmt.Sprint("failover-", i))
		objects = append(objects, claim(names[i], shares.Class))
	}
	s.must(kube.Apply(s.anyhow(), strings.Join(objects, "---\n"), "--namespace="+namespace))
	await.NoError(s, "the leader creates volumes", func() error {
		if s.kubectl("get", "events", "--field-selector=reason=Provisioning,involvedObject.name="+names[0], "-o", "name") == "" {
			return errors.New("no event")
		}
		return nil
	})
	s.must(ordinary.Hold("kubelet")) // which would start the containers again
	release := sync.OnceFunc(func() { s.must(ordinary.Release("kubelet")) })
	s.Cleanup(release)
	containers, err := kube.Run(s.anyhow(), "--namespace="+install.Namespace, "get", "pod", leader, "-o",
		"jsonpath={.status.containerStatuses[*].containerID}")
	s.must(err)
	for _, id := range strings.Fields(containers) {
		s.on(ordinary, "ctr -n k8s.io tasks kill -s SIGKILL "+strings.TrimPrefix(id, "containerd://"))
	}
	died := time.Now()
	get := slices.Concat([]string{"get", "pvc", "-o", "jsonpath={.items[*].spec.volumeName}"}, names)
	if bound := s.kubectl(get...); bound != "" {
		s.Errorf("volumes exist although the server is frozen: %s", bound)
	}
	resume()
	await.NoError(s, "there is another leader", func() error {
		if now := s.leader(); now == leader || now == "" {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})
	s.Logf("another leader after %.1f s", time.Since(died).Seconds())
	release()
	volumes := s.bound(names)
	s.Logf("%d claims are bound %.1f s after the leader's death", claims, time.Since(died).Seconds())
	s.kubectl(append([]string{"delete", "pvc", "--timeout=" + livetest.Patience.String()}, names...)...)
	await.NoError(s, "the directories of the claims are gone", func() error {
		for _, volume := range volumes {
			switch _, err := os.Stat(filepath.Join(shares.Directory(s.server), volume)); {
			case err == nil:
				return fmt.Errorf("%s is still there", volume)
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
		}
		return nil
	})
	s.driverIsReady()
}

// bound waits until claims are bound, each to a volume of its own with a directory, and returns the
// volumes.
func (s *scene) bound(claims []string) (volumes []string) {
	s.Helper()
	of := map[string]string{}
	for _, claim := range claims {
		await.NoError(s, claim+" is bound", func() error { return s.is("Bound", "pvc", claim, "{.status.phase}") })
		volume := s.get("pvc", claim, "{.spec.volumeName}")
		if other, ok := of[volume]; ok {
			s.Errorf("%s and %s have the volume %s", claim, other, volume)
		}
		of[volume] = claim
		volumes = append(volumes, volume)
		if _, err := os.Stat(filepath.Join(shares.Directory(s.server), volume)); err != nil {
			s.Error(err)
		}
	}
	return volumes
}

// leader returns the controller's pod that leads.
func (s *scene) leader() string {
	s.Helper()
	out, err := kube.Run(s.anyhow(), "--namespace="+install.Namespace, "get", "lease", "csi-sidecars-smb-csi-causeway-dev",
		"-o", "jsonpath={.spec.holderIdentity}")
	s.must(err)
	pod, _, _ := strings.Cut(out, "_")
	return pod
}
