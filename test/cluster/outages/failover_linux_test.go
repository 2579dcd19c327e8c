package outages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// failOver deletes the controller's leader without grace while it creates volumes. The other replica
// creates the rest: each claim has a volume, each volume one directory.
func (s *scene) failOver() {
	const claims = 40
	lease := func() string { // the pod that leads
		s.Helper()
		out, err := kube.Run(s.anyhow(), "--namespace="+install.Namespace, "get", "lease", "csi-sidecars-smb-csi-causeway-dev",
			"-o", "jsonpath={.spec.holderIdentity}")
		s.must(err)
		pod, _, _ := strings.Cut(out, "_")
		return pod
	}
	leader := lease()
	var objects, names []string
	for i := range claims {
		name := fmt.Sprint("failover-", i)
		names = append(names, name)
		objects = append(objects, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, labels: {test: failover}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: %s
  resources: {requests: {storage: 1Gi}}
`, name, shares.Class))
	}
	s.must(kube.Apply(s.anyhow(), strings.Join(objects, "---\n"), "--namespace="+namespace))
	s.driver("delete", "pod", leader, "--grace-period=0", "--force")
	died := time.Now()
	s.until("another leader", func() error {
		if now := lease(); now == leader || now == "" {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})
	s.Logf("another leader after %.1f s", time.Since(died).Seconds())
	directories := map[string]string{}
	for _, name := range names {
		s.until(name+" to be bound", func() error { return s.is("Bound", "pvc", name, "{.status.phase}") })
		volume := s.get("pvc", name, "{.spec.volumeName}")
		if other, ok := directories[volume]; ok {
			s.Errorf("%s and %s have the volume %s", name, other, volume)
		}
		directories[volume] = name
		if _, err := os.Stat(filepath.Join(shares.Directory(s.server), volume)); err != nil {
			s.Error(err)
		}
	}
	s.Logf("%d claims are bound %.1f s after the leader's death", claims, time.Since(died).Seconds())
	s.kubectl("delete", "pvc", "-l", "test=failover", "--timeout="+patience.String())
	s.until("no directories of the claims", func() error {
		for volume, name := range directories {
			if _, err := os.Stat(filepath.Join(shares.Directory(s.server), volume)); !os.IsNotExist(err) {
				return fmt.Errorf("that of %s: %v", name, err)
			}
		}
		return nil
	})
	s.driverIsReady()
}
