package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// config is a driver definition, with the files that it names, and the expected result of a run. A
// configuration is a directory with driver.yaml, the definition, and expected.yaml. Other
// definitions have no expected.yaml.
type config struct {
	name       string
	dir        string
	definition string // its path
	driver     string // CSI name
	cluster    cluster
	expected
}

// cluster is the cluster of a configuration, if it differs from the command line's: cluster.yaml.
type cluster struct {
	// Guests are the kernels of the nodes for the suite's pods, which are guests of QEMU. One
	// ordinary node is beside them, for the controllers.
	Guests []string `json:"guests"`
	// Shares requests an SMB server, whose share is in the values of the chart:
	// test/cluster/shares.
	Shares bool `json:"shares"`
}

// clusterFile is where a configuration's cluster is described.
const clusterFile = "cluster.yaml"

// expected is the expected result of a run: expected.yaml.
type expected struct {
	// unlisted is true if the run has no expected.yaml: the suite may skip any spec.
	unlisted bool
	// Floor is the number of specs that pass at least in a full run. Specs that the suite skips for
	// something that the cluster lacks are subtracted.
	Floor int `json:"floor"`
	// Smoke has patterns of names: a smoke run has the specs that match a pattern.
	Smoke []string `json:"smoke"`
	// LeftOut are patterns of specs that this program cannot run.
	LeftOut []group `json:"leftOut"`
	// Skips are the specs that the suite skips when they are run. Each is a name.
	Skips []group `json:"skips"`
}

// group is a set of specs, with the reason for which they do not run.
type group struct {
	Reason string `json:"reason"`
	// Without limits the group to clusters that lack this: "ssh" is a way into the nodes,
	// "second-node" a second node for pods.
	Without string `json:"without,omitempty"`
	// Count is the number of specs that the patterns match, if it differs from one each, or
	// anyCount.
	Count int      `json:"count,omitempty"`
	Specs []string `json:"specs"`
}

// driverFile is where a configuration's driver is described.
const driverFile = "driver.yaml"

// readConfig reads the configuration in dir. The suite checks driver.yaml.
func readConfig(dir string) (config, error) {
	c, err := readDefinition(filepath.Join(dir, driverFile))
	if err != nil {
		return c, err
	}
	c.name, c.unlisted = filepath.Base(c.dir), false
	data, err := os.ReadFile(filepath.Join(c.dir, "expected.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(data, &c.expected)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return c, fmt.Errorf("%s: expected.yaml: %w", dir, err)
	}
	data, err = os.ReadFile(filepath.Join(c.dir, clusterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = yaml.UnmarshalStrict(data, &c.cluster)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %s: %w", dir, clusterFile, err)
	}
	return c, nil
}

// readDefinition reads a driver definition without an expected.yaml. The suite checks it.
func readDefinition(file string) (config, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return config{}, err
	}
	name := filepath.Base(file)
	c := config{name: strings.TrimSuffix(name, filepath.Ext(name)), dir: filepath.Dir(file), definition: file,
		expected: expected{unlisted: true}}
	data, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	var driver struct{ DriverInfo any }
	if err := yaml.Unmarshal(data, &driver); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	if info, ok := driver.DriverInfo.(map[string]any); ok { // else the suite reports the mistake, with all others
		c.driver, _ = info["Name"].(string)
	}
	return c, nil
}

// choose applies the patterns of a command line: focus replaces those of a smoke run, skip excludes
// further specs. Empty patterns do nothing.
func (c *config) choose(focus, skip string) {
	if focus != "" {
		c.Smoke = []string{focus}
	}
	if skip != "" {
		c.LeftOut = append(c.LeftOut, group{Reason: "--skip", Count: anyCount, Specs: []string{skip}})
	}
}

// anyCount is the count of a group that may have any number of specs but none.
const anyCount = -1

func (e expected) check() error {
	patterns := slices.Clone(e.Smoke)
	for _, g := range e.LeftOut {
		patterns = append(patterns, g.Specs...)
	}
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for _, groups := range [][]group{e.LeftOut, e.Skips} {
		for _, g := range groups {
			if g.Reason == "" {
				return fmt.Errorf("%q have no reason", g.Specs)
			}
			if g.Without != "" && g.Without != withoutSSH && g.Without != withoutSecondNode {
				return fmt.Errorf("invalid without %q: must be %q or %q", g.Without, withoutSSH, withoutSecondNode)
			}
			if g.Count != 0 && g.Count <= len(g.Specs) {
				return fmt.Errorf("count: %d for %q: leave it out where each is one spec", g.Count, g.Specs)
			}
			for _, s := range g.Specs {
				if seen[s] {
					return fmt.Errorf("%q is there twice", s)
				}
				seen[s] = true
			}
		}
	}
	return nil
}

// checkPattern checks a pattern of specs. Ginkgo looks for it in the whole text of a spec, in which
// the name has something before it.
func checkPattern(p string) error {
	if _, err := regexp.Compile(p); err != nil {
		return fmt.Errorf("invalid pattern %q: %w", p, err)
	}
	if p == "" || strings.HasPrefix(p, "^") {
		return fmt.Errorf("invalid pattern %q: it matches all specs or none; must not be empty or begin with ^", p)
	}
	return nil
}

// The values of group.Without.
const (
	withoutSSH        = "ssh"
	withoutSecondNode = "second-node"
)

// features are requirements of specs on a cluster beyond a node and a driver.
type features struct {
	ssh   bool // a way into the nodes
	nodes int  // Linux nodes that pods can run on
}

// lacks reports whether a cluster lacks a feature in group.Without.
func (f features) lacks(what string) bool {
	return what == withoutSSH && !f.ssh || what == withoutSecondNode && f.nodes < 2
}

// among returns those of groups that hold in a cluster.
func among(groups []group, f features) []group {
	var all []group
	for _, g := range groups {
		if g.Without == "" || f.lacks(g.Without) {
			all = append(all, g)
		}
	}
	return all
}

// leftOut returns the patterns of the specs that do not run.
func (c config) leftOut(f features) []string {
	var all []string
	for _, g := range among(c.LeftOut, f) {
		all = append(all, g.Specs...)
	}
	return all
}
