// Package layering checks the rules of the source: the permitted imports of each package, and
// forbidden calls.
package layering

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/causeway-csi/causeway/"

// logging is forbidden to a package whose errors have all information.
var logging = []string{"log", "log/slog", "k8s.io/klog/v2"}

// kubernetes has the packages of the controllers of csi-sidecars. None of them imports another, or
// the driver.
var kubernetes = []string{
	module + "sidecars/internal/sidecar", module + "sidecars/internal/kube", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog/v2", "k8s.io/csi-translation-lib", "k8s.io/apiserver/pkg/util/feature",
	"github.com/container-storage-interface/spec", "github.com/kubernetes-csi/external-snapshotter", "google.golang.org/grpc", "github.com/prometheus", "github.com/go-logr/logr", "golang.org/x/sync",
}

// linuxHalf is the mounter of Linux.
const linuxHalf = "pkg/mounter/internal/linux"

// rooms lists, for the non-test files of a package, the permitted imports beside the standard
// library, by prefix, and the forbidden imports of the standard library.
var rooms = map[string]struct{ may, not []string }{
	"internal/atomicfile": {[]string{module + "internal/beneath"},
		append([]string{"os/exec"}, logging...)},
	"internal/await":                       {nil, append([]string{"os/exec"}, logging...)},
	"internal/beneath":                     {[]string{"golang.org/x/sys", module + "internal/dacl", module + "internal/regular"}, logging},
	"internal/connlimit":                   {nil, logging},
	"internal/crashpoint":                  {nil, logging},
	"internal/dacl":                        {[]string{"golang.org/x/sys"}, logging},
	"internal/fair":                        {nil, append([]string{"os/exec"}, logging...)},
	"internal/flock":                       {[]string{"golang.org/x/sys"}, logging},
	"internal/flood":                       {nil, logging},
	"internal/freeport":                    {nil, append([]string{"os/exec"}, logging...)},
	"internal/gobuild":                     {[]string{module + "internal/flock"}, logging},
	"internal/guard":                       {nil, logging},
	"internal/hang":                        {[]string{"golang.org/x/sys"}, logging},
	"internal/helper":                      {[]string{"golang.org/x/sys"}, logging},
	"internal/logsafe":                     {nil, logging},
	"internal/manifests":                   {[]string{"sigs.k8s.io/yaml"}, logging},
	"internal/namespace":                   {[]string{"github.com/moby/sys/mountinfo"}, logging},
	"internal/ownsocket":                   {[]string{module + "internal/dacl"}, append([]string{"os/exec"}, logging...)},
	"internal/prereq":                      {nil, logging},
	"internal/qemu":                        {[]string{module + "internal/prereq"}, logging},
	"internal/quietlog":                    {[]string{"k8s.io/klog/v2"}, nil},
	"internal/regular":                     {nil, logging},
	"internal/smbtest":                     {[]string{"github.com/cloudsoda/go-smb2", module + "internal/namespace"}, logging},
	"internal/sized":                       {[]string{"google.golang.org/grpc", "google.golang.org/protobuf"}, logging},
	"internal/testdisk":                    {[]string{"golang.org/x/sys", module + "internal/await", module + "internal/namespace"}, logging},
	"internal/unprivileged":                {nil, logging},
	"internal/winetest":                    {nil, logging},
	"pkg/volumeid":                         {nil, append([]string{"os/exec"}, logging...)},
	"pkg/mounter":                          {[]string{"golang.org/x/sys", module + "pkg/mounter/internal/options", module + "pkg/mounter/internal/paths"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/host":                     {[]string{module + "pkg/mounter", module + linuxHalf, module + "pkg/mounter/internal/links/win", module + "internal/helper"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/mountertest":              {[]string{module + "pkg/mounter", module + "pkg/mounter/internal/keylock", module + "pkg/mounter/internal/links", module + "pkg/mounter/internal/options", module + "pkg/mounter/internal/paths", module + "pkg/mounter/internal/signature"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend":                          {[]string{module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/backendtest":              {[]string{module + "internal/await", module + "pkg/backend", module + "pkg/mounter"}, logging},
	"pkg/mounter/internal/links":           {[]string{module + "pkg/mounter", module + "pkg/mounter/internal/inflight", module + "pkg/mounter/internal/keylock", module + "pkg/mounter/internal/options", module + "pkg/mounter/internal/paths", module + "pkg/mounter/internal/signature", module + "internal/atomicfile", module + "internal/beneath", module + "internal/dacl", module + "internal/guard"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/links/linkstest": {[]string{module + "pkg/mounter", module + "pkg/mounter/internal/links", module + "pkg/mounter/internal/mountercontract", module + "pkg/mounter/internal/options", module + "internal/await"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/links/win":       {[]string{"golang.org/x/sys/windows", "github.com/kubernetes-csi/csi-proxy/v2", "github.com/Microsoft/go-winio", module + "pkg/mounter", module + "pkg/mounter/internal/links", module + "pkg/mounter/internal/signature", module + "internal/dacl", module + "internal/winetest"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/mountercontract": {[]string{module + "pkg/mounter", module + "pkg/mounter/internal/options", module + "internal/await", module + "internal/winetest"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/inflight":        {[]string{module + "internal/guard"}, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/keylock":         {nil, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/options":         {nil, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/paths":           {nil, append([]string{"os/exec"}, logging...)},
	"pkg/mounter/internal/signature":       {nil, append([]string{"os/exec"}, logging...)},
	// The Linux half of the mounter. References run linux → image, disk, cifs, freeze → filesystem
	// → tool, loop → tree.
	linuxHalf:                 {[]string{"golang.org/x/sys", "github.com/moby/sys", module + "internal/crashpoint", module + "internal/helper", module + linuxHalf, module + "pkg/mounter/internal/inflight", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/tree":       {[]string{"golang.org/x/sys", "github.com/moby/sys", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/tool":       {[]string{"golang.org/x/sys", module + "internal/helper", module + linuxHalf + "/tree", module + "pkg/mounter"}, logging},
	linuxHalf + "/loop":       {[]string{"golang.org/x/sys", "github.com/moby/sys", module + linuxHalf + "/tree", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/filesystem": {[]string{"golang.org/x/sys", module + "internal/fair", module + "internal/helper", module + linuxHalf + "/tool", module + linuxHalf + "/tree", module + "pkg/mounter"}, logging},
	linuxHalf + "/image":      {[]string{"golang.org/x/sys", module + "internal/crashpoint", module + "internal/fair", module + linuxHalf + "/filesystem", module + linuxHalf + "/loop", module + linuxHalf + "/tool", module + linuxHalf + "/tree", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/freeze":     {[]string{"golang.org/x/sys", "github.com/moby/sys", module + "internal/atomicfile", module + "internal/beneath", module + "internal/crashpoint", module + "internal/guard", module + "internal/helper", module + "internal/regular", module + linuxHalf + "/loop", module + linuxHalf + "/tool", module + linuxHalf + "/tree", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/disk":       {[]string{"golang.org/x/sys", "github.com/moby/sys", "k8s.io/mount-utils", "k8s.io/utils/exec", module + "internal/atomicfile", module + "internal/beneath", module + "internal/crashpoint", module + "internal/fair", module + "internal/regular", module + linuxHalf + "/filesystem", module + linuxHalf + "/loop", module + linuxHalf + "/tool", module + linuxHalf + "/tree", module + "pkg/mounter"}, logging},
	linuxHalf + "/cifs":       {[]string{"golang.org/x/sys", "github.com/moby/sys", module + "internal/fair", module + "internal/helper", module + linuxHalf + "/tree", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	linuxHalf + "/linuxtest":  {[]string{"golang.org/x/sys", "k8s.io/klog/v2", "github.com/moby/sys", module + "internal", module + "pkg/mounter"}, nil},
	"pkg/backend/backendtest/memory": {[]string{module + "pkg/backend", module + "pkg/mounter"},
		append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/copier":  {[]string{"golang.org/x/sys"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/extents": {[]string{"golang.org/x/sys"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/quota":   {[]string{"golang.org/x/sys"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/record": {[]string{module + "internal/beneath", module + "internal/regular",
		module + "internal/atomicfile"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/hostpath": {[]string{"golang.org/x/sys", "github.com/google/uuid", module + "pkg/backend", module + "pkg/mounter", module + "pkg/volumeid", module + "internal/beneath", module + "internal/crashpoint", module + "internal/fair", module + "internal/guard", module + "internal/helper"}, append([]string{"os/exec"}, logging...)},
	"internal/parallel":    {nil, logging},
	"internal/peer": {[]string{"github.com/container-storage-interface/spec",
		"google.golang.org/grpc", "google.golang.org/protobuf"}, append([]string{"os/exec"}, logging...)},
	"internal/peertls": {[]string{"google.golang.org/grpc/credentials", module + "internal/connlimit", module + "internal/guard", module + "internal/regular", module + "internal/atomicfile", module + "internal/beneath"}, append([]string{"os/exec"}, logging...)},
	"internal/inventory": {[]string{"github.com/container-storage-interface/spec",
		"google.golang.org/grpc", module + "pkg/volumeid"}, append([]string{"os/exec"}, logging...)},
	"internal/router":                 {[]string{"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus", module + "internal/peer", module + "pkg/volumeid", module + "internal/guard", module + "internal/regular"}, append([]string{"os/exec"}, logging...)},
	"pkg/csidriver":                   {[]string{"k8s.io/klog/v2", "github.com/prometheus", "google.golang.org/grpc", module + "pkg/backend", module + "pkg/driver", module + "pkg/mounter", module + "pkg/volumeid", module + "internal/dacl", module + "internal/connlimit", module + "internal/guard", module + "internal/helper", module + "internal/logsafe", module + "internal/inventory", module + "internal/peertls", module + "internal/router"}, []string{"os/exec", "log"}},
	"sidecars/internal/livenessprobe": {[]string{"github.com/kubernetes-csi/csi-lib-utils/rpc", "google.golang.org/grpc", "golang.org/x/sync", "k8s.io/klog/v2", module + "sidecars/internal/sidecar"}, []string{"os/exec", "log", "net/http/pprof"}}, // pprof, with its templates, makes a binary for nodes big
	"sidecars/internal/registrar":     {[]string{"github.com/kubernetes-csi/csi-lib-utils/rpc", "google.golang.org/grpc", "k8s.io/klog/v2", "k8s.io/kubelet/pkg/apis/pluginregistration", module + "sidecars/internal/sidecar", module + "internal/ownsocket"}, []string{"os/exec", "log", "net/http/pprof"}},
	"sidecars/internal/sidecar":       {[]string{module + "internal/connlimit", module + "internal/logsafe", "github.com/container-storage-interface/spec", "github.com/kubernetes-csi/csi-lib-utils/rpc", "github.com/kubernetes-csi/csi-lib-utils/protosanitizer", "google.golang.org/grpc", "github.com/prometheus", "github.com/go-logr/logr", "golang.org/x/sync", "k8s.io/klog/v2"}, []string{"os/exec", "log"}},
	"sidecars/internal/kube":          {append([]string{"github.com/google/uuid", "k8s.io/component-base", "k8s.io/utils", "sigs.k8s.io/yaml", "github.com/kubernetes-csi/csi-lib-utils/connection", "github.com/kubernetes-csi/external-attacher/v4/pkg/features", "github.com/kubernetes-csi/external-provisioner/v6/pkg/features", "github.com/kubernetes-csi/external-resizer/v2/pkg/features"}, kubernetes...), []string{"os/exec", "log"}},
	"sidecars/internal/attacher": {append([]string{"github.com/kubernetes-csi/external-attacher/v4"},
		kubernetes...), []string{"os/exec", "log"}},
	"sidecars/internal/provisioner": {append([]string{"github.com/kubernetes-csi/external-provisioner/v6", "sigs.k8s.io/sig-storage-lib-external-provisioner/v13", "sigs.k8s.io/gateway-api/pkg/client", "k8s.io/component-base/metrics/legacyregistry"}, kubernetes...), []string{"os/exec", "log"}},
	"sidecars/internal/resizer": {append([]string{"github.com/kubernetes-csi/external-resizer/v2",
		"github.com/kubernetes-csi/csi-lib-utils/rpc"}, kubernetes...), []string{"os/exec", "log"}},
	"sidecars/internal/snapshotter":        {kubernetes, []string{"os/exec", "log"}},
	"sidecars/internal/snapshotcontroller": {kubernetes, []string{"os/exec", "log"}},
	"sidecars/internal/healthmonitor": {append([]string{"github.com/kubernetes-csi/csi-lib-utils/rpc",
		module + "sidecars/internal/volumecondition"}, kubernetes...), []string{"os/exec", "log"}},
	"sidecars/internal/volumecondition": {[]string{"google.golang.org/protobuf"}, logging},
	"pkg/driver":                        {[]string{"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus", "go.opentelemetry.io", "golang.org/x/sync", "golang.org/x/sys/windows", module + "pkg/backend", module + "pkg/mounter", module + "internal/peer", module + "pkg/volumeid", module + "internal/beneath", module + "internal/dacl", module + "internal/crashpoint", module + "internal/guard", module + "internal/ownsocket", module + "internal/regular", module + "internal/atomicfile"}, []string{"os/exec", "log"}},

	// The parts of hostpath know nothing of each other, of volumes or of CSI.
	"pkg/backend/hostpath/internal/catalog": {nil, append([]string{"os/exec"}, logging...)},
	"pkg/backend/smb":                       {[]string{"golang.org/x/sync", "sigs.k8s.io/yaml", module + "pkg/backend", module + "pkg/mounter", module + "pkg/volumeid", module + "internal/fair", module + "internal/regular"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/smb/internal/lease":        {[]string{module + "pkg/backend", module + "pkg/backend/smb/internal/client"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/smb/internal/records":      {[]string{module + "pkg/backend", module + "pkg/mounter", module + "pkg/volumeid"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/smb/internal/sharesim":     {[]string{module + "pkg/backend", module + "pkg/backend/smb/internal/client"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/smb/internal/client": {[]string{"github.com/cloudsoda/go-smb2", "github.com/jcmturner/gokrb5/v8", "golang.org/x/crypto/md4", "golang.org/x/text",
		module + "pkg/backend", module + "pkg/mounter"}, append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/joberrors": {[]string{module + "pkg/backend", module + "pkg/backend/internal/jobs"},
		append([]string{"os/exec"}, logging...)},
	"pkg/backend/internal/jobs": {[]string{module + "internal/guard"},
		append([]string{"os/exec"}, logging...)},
	"pkg/backend/hostpath/internal/store": {[]string{"golang.org/x/sys", "github.com/google/uuid", module + "pkg/backend/internal", module + "internal/dacl", module + "internal/beneath", module + "internal/crashpoint", module + "internal/guard"}, append([]string{"os/exec"}, logging...)},
}

// linuxParts returns the import paths of parts of the mounter of Linux, and of packages that no
// part imports.
func linuxParts(names ...string) []string {
	all := []string{module + "pkg/mounter/internal/links", machine, simulated}
	for _, name := range names {
		all = append(all, module+linuxHalf+"/"+name)
	}
	return all
}

// never are imports that even a wide prefix above does not allow.
var never = map[string][]string{
	linuxHalf + "/tree":       linuxParts("tool", "loop", "filesystem", "image", "freeze", "disk", "cifs", "linuxtest"),
	linuxHalf + "/tool":       linuxParts("loop", "filesystem", "image", "freeze", "disk", "cifs", "linuxtest"),
	linuxHalf + "/loop":       linuxParts("tool", "filesystem", "image", "freeze", "disk", "cifs", "linuxtest"),
	linuxHalf + "/filesystem": linuxParts("loop", "image", "freeze", "disk", "cifs", "linuxtest"),
	linuxHalf + "/image":      linuxParts("freeze", "disk", "cifs", "linuxtest"),
	linuxHalf + "/freeze":     linuxParts("image", "disk", "cifs", "linuxtest"),
	linuxHalf + "/disk":       linuxParts("image", "freeze", "cifs", "linuxtest"),
	linuxHalf + "/cifs":       linuxParts("loop", "tool", "filesystem", "image", "freeze", "disk", "linuxtest"),
	linuxHalf:                 linuxParts("linuxtest"),
	"pkg/csidriver":           {module + "pkg/backend/", simulated},
	"pkg/driver":              {module + "pkg/backend/", machine, simulated},
	"pkg/backend":             {machine, simulated},
	"pkg/backend/hostpath":    {machine, simulated},
	"pkg/backend/smb":         {machine, simulated},
}

// Packages whose prefix, pkg/mounter, others may import.
const (
	machine   = module + "pkg/mounter/host"
	simulated = module + "pkg/mounter/mountertest"
)

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	Standard   bool
}

// Directories of modules, relative to the root.
const (
	kit      = "."
	sidecars = "sidecars"
)

// list runs go list in the directory of a module for an operating system.
func list(t *testing.T, dir, goos string, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Imports,GoFiles,Standard"}, args...)...)
	cmd.Dir = filepath.Join("..", "..", dir)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func hasPrefix(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes,
		func(p string) bool { return path == p || strings.HasPrefix(path, strings.TrimSuffix(p, "/")+"/") })
}

func TestImports(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		seen := map[string]bool{}
		for _, p := range append(list(t, kit, goos, "./pkg/...", "./internal/..."),
			list(t, sidecars, goos, "./internal/...")...) {
			name := strings.TrimPrefix(p.ImportPath, module)
			if len(p.GoFiles) == 0 {
				continue
			}
			room, ok := rooms[name]
			if !ok {
				t.Errorf("%s has no rules: give it a row in rooms, above, that says what it may import", name)
				continue
			}
			seen[name] = true
			for _, i := range p.Imports {
				first, _, _ := strings.Cut(i, "/")
				standard := !strings.Contains(first, ".")
				switch {
				case standard && slices.Contains(room.not, i), hasPrefix(i, never[name]):
					t.Errorf("%s imports %s on %s", name, i, goos)
				case !standard && !hasPrefix(i, room.may):
					t.Errorf("%s imports %s on %s", name, i, goos)
				}
			}
		}
		for name := range rooms {
			if !seen[name] {
				t.Errorf("%s has rules but is not there on %s: take its row out of rooms", name, goos)
			}
		}
	}
}

// TestWindowsRunsNoPrograms: mount_windows.go of k8s.io/mount-utils v0.37.2 runs PowerShell for SMB
// mappings and disks, with arguments from a request. csi-proxy v2.0.0-alpha.2 uses WMI through COM,
// and no package of it that a driver needs imports os/exec: it may be used on Windows.
func TestWindowsRunsNoPrograms(t *testing.T) {
	for _, p := range list(t, kit, "windows", "-deps", "./cmd/driver") {
		if p.ImportPath == "os/exec" || strings.HasPrefix(p.ImportPath, "k8s.io/mount-utils") {
			t.Errorf("the Windows driver contains %s", p.ImportPath)
		}
	}
}

// TestNoProductIsForWine: builds without the tag winetest have no links and no deletions for Wine.
func TestNoProductIsForWine(t *testing.T) {
	for _, p := range list(t, kit, "windows", "-deps", "./cmd/...") {
		if p.ImportPath == module+"internal/winetest" {
			t.Errorf("the Windows driver contains %s", p.ImportPath)
		}
		for _, file := range p.GoFiles {
			if strings.HasPrefix(p.ImportPath, module) && strings.Contains(file, "wine") {
				t.Errorf("the Windows driver contains %s/%s", p.ImportPath, file)
			}
		}
	}
}

// TestTheDriverForWineHasNoLibrary: the init of microsoft/wmi panics under Wine, and a call of
// virtdisk aborts the process there.
func TestTheDriverForWineHasNoLibrary(t *testing.T) {
	for _, p := range list(t, kit, "windows", "-tags=winetest", "-deps", "./cmd/driver") {
		if hasPrefix(p.ImportPath, []string{"github.com/microsoft/", "github.com/Microsoft/", "github.com/kubernetes-csi/csi-proxy", "github.com/go-ole"}) {
			t.Errorf("the driver for Wine contains %s", p.ImportPath)
		}
	}
}

// TestTheProductHasNoTestDependencies: dependencies of tests are not in the driver.
func TestTheProductHasNoTestDependencies(t *testing.T) {
	for _, p := range append(list(t, kit, "linux", "-deps", "./cmd/..."),
		list(t, sidecars, "linux", "-deps", "./cmd/...")...) {
		if hasPrefix(p.ImportPath, []string{module + "pkg/backend/backendtest", "testing", "github.com/onsi",
			"github.com/kubernetes-csi/csi-test", "k8s.io/kubernetes"}) {
			t.Errorf("a product contains %s", p.ImportPath)
		}
	}
}

// TestTheDriverDoesNotKnowKubernetes: the sidecars do, and they know no storage.
func TestTheDriverDoesNotKnowKubernetes(t *testing.T) {
	for _, p := range list(t, kit, "linux", "-deps", "./cmd/driver") {
		if hasPrefix(p.ImportPath, []string{"k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery",
			module + "sidecars"}) {
			t.Errorf("the driver contains %s", p.ImportPath)
		}
	}
	for _, p := range list(t, sidecars, "linux", "-deps", "./cmd/...") {
		if hasPrefix(p.ImportPath, []string{module + "pkg/driver", module + "pkg/backend", module + "pkg/mounter",
			module + "internal/router"}) {
			t.Errorf("the sidecars contain %s", p.ImportPath)
		}
	}
}

// TestTheNodeBinaryIsSmall: it runs on every node, with at most 20 MB of file and 20 MiB of memory.
// Each of these costs megabytes.
func TestTheNodeBinaryIsSmall(t *testing.T) {
	for _, p := range list(t, sidecars, "linux", "-deps", "./cmd/csi-sidecars-node") {
		if hasPrefix(p.ImportPath, []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go",
			"k8s.io/component-base", "go.opentelemetry.io", "go.uber.org/zap", "net/http/pprof", "os/exec"}) {
			t.Errorf("the binary for nodes contains %s", p.ImportPath)
		}
	}
}

// walkSources calls visit for each file and directory of the sources. Other suites write below bin
// and .git at the same time.
func walkSources(root string, visit func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bin", ".git"}, d.Name()):
			return fs.SkipDir
		}
		return visit(path, d)
	})
}

// listeners are the files of programs that open a port or serve HTTP, each with its limits on
// connections: a client of any pod must not take the memory, the files or the time of others.
var listeners = map[string]string{
	"pkg/csidriver/listen.go":              "connlimit for HTTP and the router",
	"pkg/driver/listen.go":                 "--allow-tcp, for tests on one machine",
	"internal/connlimit/http.go":           "the server itself",
	"internal/ownsocket/bind_unix.go":      "sockets that only root and the kubelet open",
	"internal/ownsocket/bind_windows.go":   "sockets that only SYSTEM and the kubelet open",
	"sidecars/internal/sidecar/http.go":    "connlimit",
	"containercopy/cmd/agent/run_linux.go": "connlimit for the streams and the metrics, peertls for the calls",
	"internal/freeport/freeport.go":        "for tests",
}

// listens matches what opens a port or a socket, or serves HTTP.
var listens = regexp.MustCompile(`^(net\.Listen(TCP|Unix|UDP|Packet|IP|Config|Unixgram|MulticastUDP)?|tls\.Listen|` +
	`http\.(Server|Serve|ServeTLS|ListenAndServe|ListenAndServeTLS))$`)

// TestListenersHaveLimits: a new listener needs a row with its limits. The copy API is served by
// Kubernetes' generic API server, which bounds the requests and the time of a handshake, and not
// the number of connections: containercopy/docs/limits.md has the reason.
func TestListenersHaveLimits(t *testing.T) {
	root := filepath.Join("..", "..")
	found := map[string]bool{}
	err := walkSources(root, func(path string, d fs.DirEntry) error {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && slices.Contains([]string{"test", "tools", "examples", "findings", "hack", "sidecars/test",
			"containercopy/live", "internal/smbtest"}, rel) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				x, _ := s.X.(*ast.Ident)
				if x != nil && listens.MatchString(x.Name+"."+s.Sel.Name) {
					found[rel] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range found {
		if listeners[file] == "" {
			t.Errorf("%s opens a port or serves HTTP: use package connlimit, and name its limits in listeners", file)
		}
	}
	for file := range listeners {
		_, err := os.Stat(filepath.Join(root, strings.Split(file, "/")[0])) // hack/without-containercopy removes a folder
		if !found[file] && err == nil {
			t.Errorf("%s opens no port: remove it from listeners", file)
		}
	}
}

// maxLines is the longest a function may be.
const maxLines = 60

// TestForbiddenCalls reads the source: no function over 60 lines, no init, no package without
// a meaning in its name. Packages on the path of a pod's data have no RemoveAll and no check of the
// operating system's name.
func TestForbiddenCalls(t *testing.T) {
	root := filepath.Join("..", "..")
	functions := 0
	err := walkSources(root, func(path string, d fs.DirEntry) error {
		if d.IsDir() {
			if slices.Contains([]string{"util", "utils", "common", "types", "helpers", "vendor"}, d.Name()) {
				t.Errorf("%s: a name that says nothing", path)
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		test := strings.HasSuffix(path, "_test.go")
		product := !test && (strings.HasPrefix(path, filepath.Join(root, "pkg")+string(filepath.Separator)) ||
			strings.HasPrefix(path, filepath.Join(root, sidecars, "internal")+string(filepath.Separator)))
		version := strings.HasPrefix(path, filepath.Join(root, "pkg", "csidriver")) // it prints the platform
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				functions++
				lines := files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1
				if !test && lines > maxLines {
					t.Errorf("%s: %s has %d lines, over %d", path, n.Name.Name, lines, maxLines)
				}
				if n.Name.Name == "init" && n.Recv == nil && !strings.HasSuffix(path, ".pb.go") {
					t.Errorf("%s: an init function", path)
				}
			case *ast.SelectorExpr:
				if product && n.Sel.Name == "RemoveAll" {
					t.Errorf("%s: RemoveAll also deletes what is mounted below: use Remove for an empty directory, "+
						"and for more"+
						" something that enters no mount, as removeTree of pkg/backend/hostpath", files.Position(n.Pos()))
				}
				if x, ok := n.X.(*ast.Ident); ok && product && !version && x.Name == "runtime" &&
					n.Sel.Name == "GOOS" && !strings.HasSuffix(path, "_other.go") {
					t.Errorf("%s: runtime.GOOS", files.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil || functions < 200 {
		t.Errorf("%d functions were looked at, %v", functions, err)
	}
}
