# hack/go runs an installed Go that is new enough, or fetches one.
GO ?= ./hack/go
# go.work is for editors.
export GOWORK = off
# One value for all commands: with two, Go would compile client-go twice. The race detector needs C.
export CGO_ENABLED = 0
# hack/packages has the groups: as root on Debian it installs the missing programs of a group.
NEED = @./hack/packages
# Where root can mount, a test that does not mount is an error: see internal/namespace.
ifndef CAUSEWAY_MUST_MOUNT
export CAUSEWAY_MUST_MOUNT := $(shell ./hack/mounts)
endif
# Tests often wait for disks: two packages for each core keep the cores busy. More would delay each other.
PACKAGES = $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN || echo 2))
# Only a test that hangs meets this limit, on any machine: go test then prints the stacks. Suites that take longer have a limit of their own.
HANGS = -timeout 40m
# Without debug information a test's program is linked in two thirds of the time.
LINK = -ldflags=-w
# The packages with the longest tests come first: at the end, a core would wait for them.
LONG = ./pkg/backend/smb/... ./pkg/backend/hostpath/... ./pkg/mounter/... ./test/crash/... ./pkg/...

# The modules, as go.work lists them: the root, the examples, sidecars and these. Separate modules keep the product's go.mod
# small. Tests of these modules run on Linux.
MODULES = $(filter-out . sidecars examples/%,$(patsubst ./%,%,$(shell sed -n 's/^\t//p' go.work)))
# Container copy. The rest does not need the folder: hack/without-containercopy.
COPY = $(filter containercopy containercopy/%,$(MODULES))
# The flags of the suite's program, for all of its packages: with other flags Go would compile Kubernetes a second time, which takes minutes.
SUITE = GOFLAGS=-trimpath $(GO) -C test/e2e/tools/suite
# go.work gives these modules the kit of this tree; their go.mod names a release.
EXAMPLES = ./examples/attached/... ./examples/minimal/...
SIDECARS = $(GO) -C sidecars

# golangci-lint runs the go command. It is of this machine also where it reads the files of another system.
GOLANGCI = PATH=$$($(CURDIR)/hack/go env GOROOT)/bin:$$PATH $$(GOOS= GOARCH= CGO_ENABLED=0 $(CURDIR)/hack/go -C $(CURDIR)/tools/golangci-lint tool -n golangci-lint) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml

# gRPC's trace pages call methods by name: the linker would keep every method of every type, 30 MB of csi-sidecars.
TAGS = grpcnotrace
LDFLAGS = -s -w -X main.version=$(VERSION) -X github.com/causeway-csi/causeway/sidecars/internal/sidecar.version=$(VERSION)

# Images: the tag, the platforms, and more flags, such as --windows-base=… (docs/how-to/images.md).
VERSION = dev
IMAGES = linux/amd64,linux/arm64,windows/amd64
IMAGE_FLAGS =
# A release: the key of cosign that signs, the public key that verifies, and more flags, such as --windows-base=… or --allow-unsigned.
KEY =
PUB =
OUT = bin/release/$(VERSION)
RELEASE_FLAGS =
# The time of each fuzz target.
FUZZTIME = 5s
# More flags of test/cluster/scenarios.
SCENARIOS =
# More flags of test/e2e, such as another provider, one kind, several runs (docs/contributing/e2e.md).
E2E =

.PHONY: help windows-check demo cluster-demo test test-root-module test-sidecars-module test-bare test-shares test-samba race race-smoke crash crash-smb hostile test-vm test-vm-smb test-wine test-sidecars test-copy test-plugin copy-cluster bench-copy test-images clusters test-local-cluster test-cluster test-chart-cluster test-node-faults test-rules test-faults test-smb-cluster test-guests test-switches e2e e2e-full e2e-smb e2e-smb-smoke build images images-lock release release-verify test-release bench bench-router bench-smb bench-sidecars bench-cluster own-driver own-driver-cluster quickstart attached-cluster generate generate-flags generate-rbac generate-manifest chart conformance modules fuzz vet lint plots docs docs-serve
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1	\2/p' Makefile
demo: ## build the driver, and create, mount, fill, share and delete volumes with it
	$(NEED) demo
	@$(GO) run ./test/demo
cluster-demo: ## start a Kubernetes cluster on this machine, install the driver, use it, and remove all of it; root, Debian
	$(NEED) cluster
	@$(GO) -C test/cluster run ./demo
test: ## run all tests
	$(NEED) test
	@$(GO) version >/dev/null # fetches Go once, if it is missing
	@$(MAKE) --no-print-directory -j2 test-root-module test-sidecars-module
	@./hack/mounts --left-out
# Side by side: while the last tests of the root module wait, the cores have the others.
test-root-module:
	$(GO) test $(HANGS) -p $(PACKAGES) $(LINK) $(LONG) ./...
test-sidecars-module:
	$(SIDECARS) test $(HANGS) $(LINK) ./...
test-bare: ## run the README's commands in a root filesystem of Debian with make, curl, unzip and ca-certificates only (BARE=demo: one of them); root, Debian
	$(NEED) git bare
	@./hack/test-bare $(BARE)
test-shares: ## run the tests of shares only
	$(NEED) test
	$(GO) test -count=1 $(HANGS) -p $(PACKAGES) $(LINK) ./internal/smbtest ./pkg/backend/smb/...
test-samba: ## run test-shares in a root filesystem of Debian 13, whose Samba is newer; root, Debian
	$(NEED) git bare
	@RELEASE=trixie ./hack/test-bare test-shares
race-smoke: ## run the tests of the driver, the router and the client of shares with the race detector; needs a C compiler
	$(NEED) test cc
	CGO_ENABLED=1 $(GO) test $(HANGS) -p $(PACKAGES) -race ./pkg/driver ./test/nodes ./pkg/backend/smb/internal/client ./internal/... ./cmd/...
race: ## run all tests with the race detector; needs a C compiler
	$(NEED) test cc
	CGO_ENABLED=1 $(GO) test $(HANGS) -p $(PACKAGES) -race $(LONG) ./...
	set -e; for m in sidecars $(filter containercopy,$(COPY)); do CGO_ENABLED=1 $(GO) -C $$m test $(HANGS) -p $(PACKAGES) -race ./...; done
crash: ## kill the driver and cut the power at every crash point; make test runs a part of these
	$(NEED) test
	CAUSEWAY_CRASH_ALL=1 $(GO) test -count=1 $(HANGS) ./test/crash
crash-smb: ## interrupt calls on shares at every step (processes, connections, the server), and simulate 10,000 schedules of their lease; make test runs a part of these
	$(NEED) test
	CAUSEWAY_CRASH_ALL=1 $(GO) test -count=1 $(HANGS) -run 'AtSteps|Lost|UsedAgain|WithoutItsSource|AStopped' ./pkg/backend/smb
	GOGC=800 $(GO) test -count=1 $(HANGS) -run TestSchedules ./pkg/backend/smb/internal/lease -args -lease.schedules=10000
hostile: ## run the attacks of tenants, and measure their effect on other volumes; make test runs a short form
	$(NEED) test
	@$(GO) run ./test/hostile
test-vm: ## run the tests that need another kernel, such as one with project quotas or cifs, in a guest (Debian, amd64)
	$(NEED) vm
	@$(GO) run ./test/vm
	@$(GO) run ./test/vm -kernel linux-image-6.12-cloud-amd64 -only TestShares
	@$(GO) run ./test/vm -selinux
test-vm-smb: ## run the long tests of nodes with shares in guests with two kernels (7 minutes; Debian, amd64)
	$(NEED) vm
	@$(GO) run ./test/vm -only TestNode
	@$(GO) run ./test/vm -kernel linux-image-6.12-cloud-amd64 -only TestNode
test-wine: ## run unit tests, csi-sanity and the driver for Windows under Wine, with a TCP endpoint (Debian 12, amd64)
	$(NEED) wine
	@$(GO) run ./test/wine
test-sidecars: ## run csi-sidecars with a real API server, and apply the manifests to it; builds the server once
	$(NEED) test cluster
	$(GO) -C test/cluster run ./build etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok
	set -e; $(GO) -C test/cluster test -count=1 $(HANGS) $$($(GO) -C test/cluster list ./... | grep -v -e /faults -e /local -e /chart/live -e /monitoring -e '/outages$$' -e '/quotas$$' -e '/switches$$'); $(GO) -C sidecars/test test $(HANGS) ./...
test-copy: ## run the tests of container copy: containercopy/README.md
	$(NEED) test
	$(GO) -C containercopy test $(HANGS) -p $(PACKAGES) $(LINK) ./...
test-plugin: ## run the tests of kubectl causeway: docs/how-to/plugin.md
	$(GO) -C plugin test $(HANGS) -p $(PACKAGES) $(LINK) ./...
copy-cluster: ## use container copy in a cluster on this machine, with each part upgraded, rolled back, killed, removed and installed again; root, Debian
	$(NEED) cluster
	$(GO) -C containercopy/live test $(HANGS) -count=1 .
	@$(GO) -C containercopy/live run .
bench-copy: ## compare kubectl copy with kubectl cp in a cluster on this machine; root, Debian
	$(NEED) cluster
	@$(GO) -C containercopy/live run . --bench
test-images: ## build the images for this machine and run their programs; root, or an ordinary user's namespaces
	$(NEED) images cluster
	$(GO) -C deploy/images test $(HANGS) -count=1 ./...
clusters: ## run cluster-demo, quickstart, attached-cluster, own-driver-cluster, e2e, test-chart-cluster, test-node-faults and copy-cluster in one cluster on this machine (SCENARIOS=--only=demo,e2e); root, Debian
	$(NEED) cluster pages
	@$(GO) -C test/cluster run ./scenarios $(SCENARIOS)
test-cluster: ## cause the documented failures on a cluster on this machine, and upgrade the chart on another; root, Debian
	$(NEED) cluster guests
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 $(HANGS) ./local ./faults ./chart/live
test-local-cluster: ## test the program of the cluster on this machine: starts that are killed, nodes without power, guests; root, Debian
	$(NEED) cluster guests
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 $(HANGS) ./local
test-chart-cluster: ## upgrade, roll back and uninstall the chart on a cluster on this machine while pods write; root, Debian
	$(NEED) cluster
	$(GO) -C test/cluster test -count=1 $(HANGS) ./chart/live
test-node-faults: ## cause the documented failures of nodes and drivers on a cluster on this machine; root, Debian
	$(NEED) cluster
	$(GO) -C test/cluster test -count=1 $(HANGS) ./faults
test-rules: ## test the rules and the queries of the dashboards with promtool, which is built once, and that each row of the troubleshooting page has a fault, or a reason
	$(NEED) test cluster
	$(GO) -C test/cluster test -count=1 $(HANGS) ./monitoring
	$(GO) -C test/cluster test $(HANGS) -count=1 -short ./monitoring/live
	set -e; for m in $(filter %/live,$(COPY)); do $(GO) -C $$m test $(HANGS) -count=1 ./rules; done
test-faults: ## cause the faults of the troubleshooting page in a cluster on this machine until doctor names them and the alerts fire, and run doctor 100 times without a fault (80 minutes); root, Debian
	$(NEED) cluster smb
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 -timeout 150m -v ./monitoring/live
e2e: ## run one spec of each of Kubernetes' storage suites, for directories and for images, in a cluster (E2E=--provider=kind): docs/contributing/e2e.md
	$(NEED) $(if $(findstring provider,$(E2E)),,cluster) git
	set -e; $(GO) -C test/e2e test $(HANGS) -count=1 ./...; $(SUITE) test ./definition
	$(GO) -C test/e2e run . $(E2E)
e2e-full: ## run all of Kubernetes' storage specs
	$(NEED) $(if $(findstring provider,$(E2E)),,cluster) git
	$(GO) -C test/e2e run . --full $(E2E)
e2e-smb: ## run all of Kubernetes' storage specs for volumes on a share, on two guests (30 minutes; three runs with E2E=--runs=3; root, Debian 12): docs/contributing/e2e.md
	$(NEED) cluster guests smb git
	$(GO) -C test/e2e run . --kinds=smb --full --procs=4 $(E2E)
e2e-smb-smoke: ## run a part of e2e-smb
	$(NEED) cluster guests smb git
	$(GO) -C test/e2e run . --kinds=smb --procs=4 $(E2E)
test-smb-cluster: ## let an SMB server, its network, the driver and nodes fail under pods that write, on two guests (25 minutes; root, Debian 12)
	$(NEED) cluster guests outages smb
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 -timeout 90m -v ./outages
test-guests: ## write more than the size of a directory, on a guest whose kernel has project quotas, and give it a wrong clock (3 minutes; root, Debian 12)
	$(NEED) cluster guests
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 $(HANGS) -v ./quotas
test-switches: ## use optional features of Kubernetes in a cluster on this machine: placement by capacity, user namespaces, growth (6 minutes; root, Debian 12)
	$(NEED) cluster runc
	$(GO) -C test/cluster run ./build
	$(GO) -C test/cluster test -count=1 $(HANGS) -v ./switches
windows-check: ## build bin/windows-check.exe, which tries the assumptions about Windows on a Windows machine: docs/contributing/windows.md
	GOOS=windows GOARCH=amd64 $(GO) test -c -o bin/windows-check.exe ./pkg/mounter/internal/links/win
conformance: ## run csi-sanity, all tests and the whole storage suite, and write docs/reference/conformance.md (CONFORMANCE=--storage=DIR uses earlier results of the suite)
	$(NEED) test cluster git
	@$(GO) -C test/e2e run ./conformance $(CONFORMANCE)
build: ## build the driver and the sidecars into bin/ (VERSION=v1.2.3)
	$(GO) build -trimpath -ldflags='$(LDFLAGS)' -tags $(TAGS) -o bin/ ./cmd/...
	$(SIDECARS) build -trimpath -ldflags='$(LDFLAGS)' -tags $(TAGS) -o $(CURDIR)/bin/ ./cmd/...
images: ## build the images without Docker: bin/images/*.tar (VERSION=v1.2.3, IMAGES=linux/amd64)
	@$(GO) -C deploy/images run . --version=$(VERSION) --platforms=$(IMAGES) $(IMAGE_FLAGS)
images-lock: ## select the newest packages of Debian 12 for the images: deploy/images/debian.lock
	$(NEED) images
	@$(GO) -C deploy/images run . --lock
release: ## build a release from its tag: bin/release/VERSION (VERSION=v1.2.3, KEY=$HOME/causeway-key/cosign.key with COSIGN_PASSWORD): docs/contributing/release.md
	$(NEED) git
	@./hack/release --version=$(VERSION) --out=$(abspath $(OUT)) $(if $(KEY),--key=$(abspath $(KEY))) $(RELEASE_FLAGS)
release-verify: ## verify a release as a user does, without a network (VERSION=v1.2.3, PUB=cosign.pub): docs/how-to/verify-a-release.md
	@$(GO) -C release run ./cmd/causeway-release-verify --version=$(VERSION) --key=$(abspath $(PUB)) $(RELEASE_FLAGS) $(abspath $(OUT))
test-release: ## run the tests of the release: manipulated files, reproducibility, refusals
	$(NEED) git
	$(GO) -C release test $(HANGS) -count=1 ./...
bench: ## measure the driver beside its alternatives: docs/reference/benchmarks.md
	$(NEED) test
	@$(GO) run ./test/bench
bench-router: ## measure the cost of the router for a call, and with hundreds of nodes: docs/reference/benchmarks.md
	$(NEED) test
	@$(GO) run ./test/bench-router
bench-smb: ## measure the controller of shares with 2,000 volumes and 16 callers: docs/reference/benchmarks.md
	$(NEED) smb
	@$(GO) run ./test/bench-smb
bench-sidecars: ## measure csi-sidecars beside upstream's separate binaries: docs/reference/benchmarks.md
	@$(GO) -C sidecars/test run ./bench
bench-cluster: ## measure the start of pods with claims, beside pods without claims: docs/reference/benchmarks.md
	$(NEED) cluster
	@$(GO) -C test/cluster run ./bench
own-driver: ## run the commands of docs/tutorials/write-your-own-driver.md and docs/how-to/attached-disks.md outside of this tree
	$(NEED) pages
	@./hack/follow-page --sanity docs/tutorials/write-your-own-driver.md
	@./hack/follow-page --sanity docs/how-to/attached-disks.md
own-driver-cluster: ## own-driver, with a pod on a cluster on this machine; root, Debian
	$(NEED) pages cluster
	@./hack/follow-page --cluster --sanity docs/tutorials/write-your-own-driver.md
	@./hack/follow-page --sanity docs/how-to/attached-disks.md
quickstart: ## run the commands of docs/tutorials/quickstart.md outside of this tree; root, Debian
	$(NEED) pages cluster
	@./hack/follow-page --cluster docs/tutorials/quickstart.md
attached-cluster: ## deploy examples/attached on a cluster on this machine, and move a pod with its data (ATTACHED=--suite); root, Debian
	$(NEED) cluster
	@./hack/attached-cluster $(ATTACHED)
generate: ## generate the Go files of internal/peer/peer.proto; needs protoc
	$(NEED) protoc
	./hack/generate $(GO)
generate-flags: ## generate docs/reference/sidecar-flags.md
	CAUSEWAY_GENERATE=1 $(SIDECARS) test -count=1 -run TestTheFlagsPageIsTrue ./cmd/csi-sidecars
generate-manifest: ## generate the objects in docs/how-to/sidecars-manifests.md
	CAUSEWAY_GENERATE=1 $(SIDECARS) test -count=1 -run TestTheManifestPageIsTrue ./cmd/csi-sidecars
generate-rbac: ## generate the chart's roles
	CAUSEWAY_GENERATE=1 $(SIDECARS) test -count=1 -run TestTheChartsRights ./cmd/csi-sidecars
chart: ## render the files that come from the chart: deploy/linux, deploy/windows, its README, the tests' files
	@$(GO) -C test/cluster run ./chart/render
	set -e; for m in $(filter %/live,$(COPY)); do $(GO) -C $$m test $(HANGS) -count=1 -run TestReadme . -args -write; done
modules:
	@echo $(MODULES)
fuzz: ## run every fuzz target for a few seconds
	./hack/fuzz $(GO) $(FUZZTIME)
vet: ## go vet for the systems that make lint does not cover
	GOOS=darwin $(GO) vet ./...
	GOOS=windows $(SIDECARS) vet ./...
	set -e; for m in plugin $(filter containercopy,$(COPY)); do for os in windows darwin; do echo "vet $$m for $$os"; \
	GOOS=$$os $(GO) -C $$m vet $$($(GO) -C $$m list ./... | grep -v -e containercopy/.*apiserver -e containercopy/images); done; done
lint: ## gofmt, golangci-lint (.golangci.yml), and the prose linter for pages and comments (.vale.ini)
	$(NEED) cc git
	@failed=; out=$$($$($(GO) env GOROOT)/bin/gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; failed=gofmt; }; \
	$(GOLANGCI) ./... || failed="$$failed ."; \
	echo "lint for Windows"; GOOS=windows $(GOLANGCI) --disable=unused ./cmd/... ./internal/... ./pkg/... || failed="$$failed windows"; \
	for m in sidecars $(MODULES); do echo "lint $$m"; (cd $$m && $(GOLANGCI) ./...) || failed="$$failed $$m"; done; \
	echo "lint the suite"; (cd test/e2e/tools/suite && GOFLAGS=-trimpath $(GOLANGCI) ./...) || failed="$$failed suite"; \
	GOWORK=$(CURDIR)/go.work $(GOLANGCI) $(EXAMPLES) || failed="$$failed examples"; \
	$(GO) -C tools/plots run . -root ../.. -check || failed="$$failed plots"; \
	$$(CGO_ENABLED=1 $(GO) -C tools/vale tool -n vale) --config=.vale.ini $$(git ls-files '*.md' '*.go' ':!*.pb.go') || failed="$$failed prose"; \
	test -z "$$failed" || { echo "lint: findings in $$failed"; exit 1; }
plots: ## draw the plots of the pages from the tables of the pages: docs/reference/plots
	$(GO) -C tools/plots run . -root ../..
docs: ## build the documentation site: bin/docs
	$(NEED) go
	@./hack/docs
docs-serve: ## serve the documentation site at localhost:1313
	$(NEED) go
	@./hack/docs serve
