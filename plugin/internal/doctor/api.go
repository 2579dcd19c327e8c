package doctor

import (
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

// oldestServer is the oldest release of Kubernetes that the driver supports.
const oldestServer = "1.31.0"

func apiChecks() []Check {
	return []Check{
		{"api-server-version", []cluster.Source{cluster.Version}, serverVersion},
		{"csidriver", []cluster.Source{cluster.CSIDrivers}, csiDriver},
		{"snapshot-crds", []cluster.Source{cluster.Groups}, snapshotCRDs},
		{"storage-classes", []cluster.Source{cluster.Classes, cluster.CSIDrivers}, storageClasses},
		{"rights", []cluster.Source{cluster.Rights}, rights},
	}
}

func serverVersion(v *cluster.View) []Finding {
	have, err := version.ParseGeneric(v.Server.GitVersion)
	if err == nil && have.AtLeast(version.MustParseGeneric(oldestServer)) {
		return nil
	}
	return []Finding{{Severity: Error, Object: "API server", Cause: "the API server is too old for the driver",
		Evidence: "version " + v.Server.GitVersion, Remedy: "upgrade Kubernetes to 1.31 or newer", Page: pageRequires}}
}

// csiDriver compares the CSIDriver with the workloads. A driver of another author may have other
// properties, so only those that follow from the flags are compared.
func csiDriver(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		object := "CSIDriver/" + d.Name
		i := slices.IndexFunc(v.CSIDrivers, func(c storagev1.CSIDriver) bool { return c.Name == d.Name })
		if i < 0 {
			all = append(all, Finding{Severity: Error, Object: object,
				Cause: "the CSIDriver is missing: Kubernetes does not know the properties of the driver, and " +
					"waits for attachments that nothing makes",
				Evidence: fmt.Sprintf("the driver runs in namespace %s, and the API server has no such object",
					d.Namespace),
				Remedy: "apply the chart or the manifests again", Page: pageObjects})
			continue
		}
		if wrong := wrongProperties(d, v.CSIDrivers[i].Spec); len(wrong) > 0 {
			all = append(all, Finding{Severity: Error, Object: object,
				Cause:    "the CSIDriver has properties of another driver",
				Evidence: strings.Join(wrong, "\n"), Remedy: "delete the CSIDriver while no pod with a volume " +
					"starts, and apply the chart again",
				Page: pageObjects})
		}
	}
	return all
}

// wrongProperties returns the properties with a value that the driver does not work with.
func wrongProperties(d *cluster.Driver, spec storagev1.CSIDriverSpec) (wrong []string) {
	set := func(b *bool) bool { return b != nil && *b }
	if attach := spec.AttachRequired == nil || *spec.AttachRequired; attach && (d.Routed() || d.SMB()) {
		wrong = append(wrong, "attachRequired: true, must be false: no attacher runs, so pods would wait forever")
	}
	if d.Hostpath() && !set(spec.PodInfoOnMount) {
		wrong = append(wrong, "podInfoOnMount: false, must be true: inline volumes need the pod's namespace")
	}
	if d.SMB() && !set(spec.RequiresRepublish) {
		wrong = append(wrong, "requiresRepublish: false, must be true: changed passwords would not reach mounts")
	}
	if modes := spec.VolumeLifecycleModes; len(modes) > 0 &&
		!slices.Contains(modes, storagev1.VolumeLifecyclePersistent) {
		wrong = append(wrong, "volumeLifecycleModes has no Persistent: PersistentVolumes cannot be mounted")
	}
	return wrong
}

// snapshotCRDs looks for the kinds that the snapshotter of a controller needs.
func snapshotCRDs(v *cluster.View) (all []Finding) {
	for _, d := range v.Drivers {
		if !runsSnapshotter(d) {
			continue
		}
		object := d.Controller.Object()
		snapshots, _ := onNodes(d, "causeway_snapshots")
		for _, gv := range []schema.GroupVersion{cluster.SnapshotVersion, cluster.GroupVersion} {
			f := Finding{Severity: Error, Object: object, Page: pageCRDs}
			// An installation may do without them: snapshotClass.create, groupSnapshotClass.create.
			if gv == cluster.GroupVersion || len(v.Groups[gv.Group]) == 0 && snapshots == 0 {
				f.Severity = Note
			}
			switch {
			case v.Serves(gv):
				continue
			case gv == cluster.GroupVersion && d.SMB():
				continue // shares have no groups
			case len(v.Groups[gv.Group]) > 0:
				f.Cause = "the CRDs of " + gv.Group + " are too old: the driver makes no such snapshots"
				f.Evidence = fmt.Sprintf("the API server has %s, and the snapshotter needs %s",
					strings.Join(v.Groups[gv.Group], ", "), gv.Version)
				f.Remedy = "upgrade the CRDs and the snapshot controller"
			default:
				f.Cause = "the CRDs of " + gv.Group + " are missing: the driver makes no such snapshots"
				f.Evidence = "the API server does not serve the group " + gv.Group
				f.Remedy = "install the CRDs, and a snapshot controller if the cluster has none"
				if gv == cluster.SnapshotVersion && snapshots > 0 {
					f.Evidence += fmt.Sprintf(", and the nodes hold %d snapshots", snapshots)
					f.Remedy += "; the objects of the snapshots were deleted with the CRDs: " +
						"restore them from a backup, and delete nothing on the nodes"
				}
			}
			all = append(all, f)
		}
	}
	return all
}

func runsSnapshotter(d *cluster.Driver) bool {
	return d.Controller != nil && slices.Contains(strings.Split(d.Controller.SidecarArgument("controllers"), ","),
		"snapshotter")
}

// storageClasses finds classes of a driver that does not exist.
func storageClasses(v *cluster.View) (all []Finding) {
	for _, c := range v.Classes {
		ours := c.Labels["app.kubernetes.io/part-of"] == "causeway" || strings.HasSuffix(c.Provisioner,
			".csi.causeway.dev")
		exists := v.Driver(c.Provisioner) != nil || slices.ContainsFunc(v.CSIDrivers,
			func(d storagev1.CSIDriver) bool { return d.Name == c.Provisioner })
		if !ours || exists {
			continue
		}
		var names []string
		for _, d := range v.Drivers {
			names = append(names, d.Name)
		}
		all = append(all, Finding{Severity: Error, Object: "StorageClass/" + c.Name,
			Cause: "the class names a driver that does not exist: its claims stay Pending",
			Evidence: fmt.Sprintf("provisioner: %s; the drivers are %s, and the cluster has no CSIDriver of that name",
				c.Provisioner, strings.Join(names, ", ")),
			Remedy: "delete the class, and create it with the right provisioner", Page: pagePending})
	}
	return all
}

func rights(v *cluster.View) (all []Finding) {
	for _, denied := range v.Denied {
		all = append(all, Finding{Severity: Error, Object: "ServiceAccount/" + denied.Account,
			Cause:    "the ServiceAccount of the controller lacks rights that its sidecars need",
			Evidence: strings.Join(denied.Rights, "\n"), Remedy: "apply the roles and bindings of the chart again",
			Page: pageLeaders + "#rights"})
	}
	return all
}
