package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

const smbDriver = "smb.csi.causeway.dev"

// server is the SMB server of a step.
var server *smbtest.Server

// shareSteps are faults of shares, as far as the controller notices them: no node mounts a share,
// as the kernel of the nodes may have no cifs.
func shareSteps() []step {
	down := want{"shares", "share //", "the controller cannot use the share", "repair the server", "docs/how-to/smb.md#when-the-server-is-away"}
	outage := func(name, row, cause, remedy, page string, breakIt func(*scene), also ...want) step {
		return step{name: "shares: " + name, begin: (*scene).serve, faults: []fault{
			{name: name, alerts: []string{"CausewayShareDown"}, rows: []string{row},
				named: []want{down, {"claims", "PersistentVolumeClaim/default/share", cause, remedy, page}}, also: also,
				cause: func(s *scene) {
					breakIt(s)
					s.claimOf(class("share", smbDriver, "Immediate", "source: "+server.Source()), "share", "1Mi")
				}}}}
	}
	pending := "A claim stays Pending: "
	return []step{
		{name: "shares", begin: (*scene).serve, faults: []fault{
			{name: "a share that the chart does not list", rows: []string{pending + "UNAUTHENTICATED, `no credentials for`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/unlisted", "the chart does not list the share", "smb.shares", pagePending}},
				cause: func(s *scene) {
					s.claimOf(class("unlisted", smbDriver, "Immediate", "source: //other.example.com/volumes"), "unlisted", "1Mi")
				}},
			{name: "a directory that exists", rows: []string{pending + "FAILED_PRECONDITION, `no record of this source names it`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/exists", "is not that of a volume of this source", "another subDir", pagePending}},
				cause: func(s *scene) {
					s.must(server.Mkdir(smbtest.Share + "/theirs"))
					s.claimOf(class("exists", smbDriver, "Immediate", "source: "+server.Source()+", subDir: theirs"), "exists", "1Mi")
				}},
			{name: "directories that overlap", rows: []string{pending + "FAILED_PRECONDITION, `the directories of two volumes overlap`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/inner", "overlaps with that of another volume", "another source or subDir", pagePending}},
				cause: func(s *scene) {
					s.shareClaim("outer", "source: "+server.Source()+", subDir: outer")
					s.claimOf(class("inner", smbDriver, "Immediate", "source: "+server.Source()+", subDir: outer/inner"), "inner", "1Mi")
				}},
			{name: "sources that overlap",
				rows:  []string{pending + "FAILED_PRECONDITION, `is in the directory of volume`, `is the source of other volumes`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/within", "overlaps with that of another volume", "another source or subDir", pagePending}},
				cause: func(s *scene) {
					s.shareClaim("around", "source: "+server.Source()+", subDir: around")
					s.claimOf(class("within", smbDriver, "Immediate", "source: "+server.Source()+"/around"), "within", "1Mi")
				}},
			{name: "a share that is almost full", alerts: []string{"CausewayShareAlmostFull"},
				named: []want{{"storage-metrics", "Pod/", "ShareFull: less than", "extend its filesystem", "docs/how-to/smb.md#conditions"}},
				also:  []want{down},
				cause: func(s *scene) {
					s.later(func() { s.space(90) })
					s.space(1)
				}},
		}},
		{name: "shares: trash", begin: (*scene).serve, faults: []fault{
			{name: "a file that cannot be removed", alerts: []string{"CausewayShareTrashStuck"},
				cause: func(s *scene) {
					s.shareClaim("stuck", "source: "+server.Source()+", subDir: stuck")
					file := filepath.Join(shares.Directory(server), "stuck", "file")
					s.must(os.WriteFile(file, nil, 0o600))
					s.later(func() { // a new process empties the trash at once, the present one within an hour
						s.kubectl("-n", install.Namespace, "delete", "pod", "-l", "app.kubernetes.io/name=causeway-smb-controller")
					})
					s.later(func() { s.command("chattr", "-R", "-i", shares.Directory(server)) })
					s.command("chattr", "+i", file)
					s.kubectl("delete", "pvc", "stuck")
				}},
			{name: "no directory .causeway/work",
				rows: []string{pending + "FAILED_PRECONDITION, `the source has no directory .causeway/work`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/unmounted", "the filesystem of the source is not mounted on the SMB server",
					"mount it on the server", pagePending}},
				cause: func(s *scene) {
					s.must(server.Mkdir(smbtest.Share + "/disk"))
					s.shareClaim("first", "source: "+server.Source()+"/disk")
					work := filepath.Join(shares.Directory(server), "disk", ".causeway")
					s.later(func() { s.must(os.Rename(work+".away", work)) })
					s.must(os.Rename(work, work+".away"))
					s.claimOf(class("unmounted", smbDriver, "Immediate", "source: "+server.Source()+"/disk"), "unmounted", "1Mi")
				}},
		}},
		outage("a wrong password", pending+"UNAUTHENTICATED, PERMISSION_DENIED", "the SMB server rejects the credentials", "correct the Secret",
			pagePodStart, func(s *scene) {
				password := server.Password
				s.later(func() { s.must(server.SetPassword(password)) })
				s.must(server.SetPassword("changed"))
				s.must(server.Kill())
				s.must(server.Restart())
			}),
		outage("a server that hangs", pending+"UNAVAILABLE, `the server does not answer`, `connection refused`, `connection error`, `no such host`",
			"the SMB server is away", "repair the server", pagePending, func(s *scene) {
				s.later(func() { s.must(server.Resume()) })
				s.must(server.Silence())
			}, want{check: "storage-metrics", object: "Pod/causeway-smb-controller-", cause: "NoAnswer: the storage"}),
		outage("a server that is away", pending+"UNAVAILABLE, `the server does not answer`, `connection refused`, `connection error`, `no such host`",
			"the SMB server is away", "repair the server", pagePending, func(s *scene) {
				s.later(func() { s.must(server.Restart()) })
				s.must(server.Kill())
			}),
	}
}

// serve starts an SMB server, and installs the driver for its share. The last step with shares
// removes both.
func (s *scene) serve() {
	s.Helper()
	if server != nil {
		return
	}
	dir := filepath.Join(os.TempDir(), "causeway-faults-smb")
	s.command("sh", "-c", "chattr -R -f -i "+dir+"; rm -rf "+dir) // of a test that was killed
	var err error
	server, err = shares.Serve(cluster, dir)
	s.must(err)
	s.space(90) // the disk of this machine may be almost full
	s.configure("dfree command = " + spaceProgram())
	s.must(shares.WriteSecret(s.anyhow(), kube, shares.ControllerSecret, server))
	set := []string{"smb.enabled=true", "smb.shares.private.source=" + server.Source(), "smb.shares.private.secretName=" + shares.ControllerSecret,
		"smb.controller.replicas=1", "smb.node.nodeSelector.causeway\\.dev/none=none"}
	s.must(upgrade(s.anyhow(), kube, "--set-string="+strings.Join(set[1:3], ","), "--set="+set[0]+","+set[3], "--set-string="+set[4],
		"--set-json=smb.controller.extraArgs="+`["--health-monitor-list-volumes-interval=5s"]`))
	endShares = func(s *scene) {
		s.must(upgrade(s.anyhow(), kube, "--set=smb.enabled=false"))
		s.must(server.Close())
		s.must(os.RemoveAll(dir))
		server, endShares = nil, func(*scene) {}
	}
}

// command runs a command on this machine, which has the files of the server.
func (s *scene) command(name string, args ...string) {
	s.Helper()
	if out, err := exec.CommandContext(s.anyhow(), name, args...).CombinedOutput(); err != nil {
		s.Fatalf("%s: %v: %s", name, err, out)
	}
}

// endShares removes the driver of shares and the server, if they are there.
var endShares = func(*scene) {}

// shareClaim makes a claim on a share, and waits for its volume.
func (s *scene) shareClaim(name, parameters string) {
	s.Helper()
	s.claimOf(class(name, smbDriver, "Immediate", parameters), name, "1Mi")
	await.NoError(s, "claim "+name+" is bound", func() error {
		_, err := s.try("wait", "pvc/"+name, "--for=jsonpath={.status.phase}=Bound", "--timeout=10s")
		return err
	})
}

// spaceProgram returns the program that tells the SMB server the space of a share.
func spaceProgram() string { return filepath.Join(filepath.Dir(server.Dir), "space") }

// space sets the available space of the shares, in percent.
func (s *scene) space(percent int) {
	s.Helper()
	script := fmt.Sprintf("#!/bin/sh\necho 1000000 %d\n", percent*10_000) // KiB
	s.must(os.WriteFile(spaceProgram()+".new", []byte(script), 0o755))
	s.must(os.Rename(spaceProgram()+".new", spaceProgram()))
}

// configure restarts the server with a line of configuration.
func (s *scene) configure(line string) {
	s.Helper()
	path := filepath.Join(filepath.Dir(server.Dir), "smb.conf")
	text, err := os.ReadFile(path)
	s.must(err)
	s.must(os.WriteFile(path, []byte(strings.Replace(string(text), "[global]\n", "[global]\n"+line+"\n", 1)), 0o644))
	s.must(server.Kill())
	s.must(server.Restart())
}
