package main

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"
)

//go:embed policy.yaml
var policy string

// policyLimit is the time until all API servers follow a new policy, or a removed one.
const policyLimit = 2 * time.Minute

// policies denies copies by a ValidatingAdmissionPolicy on CONNECT.
func (p play) policies() error {
	say("A policy that denies copies")
	if err := p.kubectl.Apply(p.ctx, policy); err != nil {
		return err
	}
	if err := p.denied(true); err != nil {
		return err
	}
	if err := p.copy(1, "a policy denies copies", p.path("tree"), "bare:/scratch/policy"); err != nil {
		return err
	}
	if err := p.show("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "no-copies"); err != nil {
		return err
	}
	return p.denied(false)
}

// denied waits until each of ten copies in a row is denied by the policy, or none: a request goes
// to any of the API servers.
func (p play) denied(want bool) error {
	for row, start := 0, time.Now(); row < 10; {
		text, err := p.command("bare:/scratch/tree", "-").CombinedOutput()
		denied := strings.Contains(string(text), "a policy denies copies")
		if err != nil && !denied {
			return fmt.Errorf("%w: %.300q", err, text)
		}
		if row++; denied != want {
			row = 0
		}
		if time.Since(start) > policyLimit {
			return fmt.Errorf("after %s a copy is denied: %t", policyLimit, denied)
		}
	}
	fmt.Printf("Ten copies in a row are denied: %t\n", want)
	return nil
}

// audits looks for the events of the API servers: of a copy, and of a request that was denied.
func (p play) audits() error {
	say("Audit events of the API servers")
	out, err := p.kubectl.Run(p.ctx, "-n", namespace, "logs", "--tail=-1", "--prefix",
		"-l", "app.kubernetes.io/name="+fullname+"-apiserver")
	if err != nil {
		return err
	}
	for name, words := range map[string][]string{
		"a copy":          {`"username":"reader"`, `"copy.causeway.dev/copy-id"`, `"copy.causeway.dev/container-id"`},
		"a denied copy":   {`"resource":"podcopiesto"`, `"code":422`, "a policy denies copies"},
		"a missing right": {`"username":"copier"`, `"code":403`},
	} {
		found := false
		for line := range strings.Lines(out) {
			has := true
			for _, w := range words {
				has = has && strings.Contains(line, w)
			}
			if has && !found {
				fmt.Printf("%s: %.160s…\n", name, line)
			}
			found = found || has
		}
		if !found {
			return fmt.Errorf("no event of %s: %q", name, words)
		}
	}
	return nil
}

// renewal makes new certificates. All programs read them without a restart; until then copies fail.
func (p play) renewal() error {
	say("New certificates")
	pods, ca, err := p.identity()
	if err != nil {
		return err
	}
	if err := p.install("--set=certificates.generation=2"); err != nil {
		return err
	}
	for row, start := 0, time.Now(); row < 10; row++ {
		if text, err := p.command("user:/scratch/tree", "-").CombinedOutput(); err != nil {
			if time.Since(start) > policyLimit {
				return fmt.Errorf("copies fail %s after the renewal: %.300q", policyLimit, text)
			}
			row = -1
			time.Sleep(time.Second)
		}
	}
	podsNow, caNow, err := p.identity()
	switch {
	case err != nil:
		return err
	case ca == caNow:
		return errors.New("the CA of the API servers is the same")
	case pods != podsNow:
		return fmt.Errorf("pods were restarted: before %s, after %s", pods, podsNow)
	}
	fmt.Println("Ten copies in a row have succeeded, with another CA and the same pods")
	return nil
}

// identity returns the pods of container copy with the restarts of their containers, and the CA of
// the API servers at kube-apiserver.
func (p play) identity() (pods, ca string, err error) {
	pods, err = p.kubectl.Run(p.ctx, "-n", namespace, "get", "pods", "--sort-by=.metadata.uid", "-o",
		`jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	if err != nil {
		return "", "", err
	}
	ca, err = p.kubectl.Run(p.ctx, "get", "apiservice", "v1alpha1.copy.causeway.dev", "-o=jsonpath={.spec.caBundle}")
	return pods, ca, err
}
