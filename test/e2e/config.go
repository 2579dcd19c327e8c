package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// config is a configuration: a directory with driver.yaml, the files that it names, and expected.yaml.
type config struct {
	name   string
	dir    string
	driver string // CSI name
	expected
}

// expected is what a run comes to if all is well: expected.yaml.
type expected struct {
	// Floor is how many specs pass at least in a full run. Where there is no way into the nodes, those that are skipped for that are fewer.
	Floor int `json:"floor"`
	// Smoke has patterns of names: a smoke run is the specs that match one.
	Smoke []string `json:"smoke"`
	// LeftOut are specs that this program can't run. Each is a pattern.
	LeftOut []group `json:"leftOut"`
	// Skips are the specs that the suite skips when they are run. Each is a name.
	Skips []group `json:"skips"`
}

// group is specs, and why they don't run.
type group struct {
	Reason string `json:"reason"`
	// Without says that this is so only where the provider lacks something: "ssh" is a way into the nodes.
	Without string `json:"without,omitempty"`
	// Count is how many specs patterns match, where it isn't one each.
	Count int      `json:"count,omitempty"`
	Specs []string `json:"specs"`
}

// driverFile is where a configuration's driver is described.
const driverFile = "driver.yaml"

// readConfig reads the configuration in dir. The suite checks driver.yaml.
func readConfig(dir string) (config, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return config{}, err
	}
	c := config{name: filepath.Base(dir), dir: dir}
	var driver struct{ DriverInfo struct{ Name string } }
	data, err := os.ReadFile(filepath.Join(dir, driverFile))
	if err == nil {
		err = yaml.Unmarshal(data, &driver)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", dir, err)
	}
	c.driver = driver.DriverInfo.Name
	if data, err = os.ReadFile(filepath.Join(dir, "expected.yaml")); err == nil {
		err = yaml.UnmarshalStrict(data, &c.expected)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return c, fmt.Errorf("%s: expected.yaml: %w", dir, err)
	}
	return c, nil
}

func (e expected) check() error {
	patterns := slices.Clone(e.Smoke)
	for _, g := range e.LeftOut {
		patterns = append(patterns, g.Specs...)
	}
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return err
		}
		// Ginkgo looks for it in the spec's whole text, in which the name has something before it.
		if p == "" || strings.HasPrefix(p, "^") {
			return fmt.Errorf("%q matches all specs or none", p)
		}
	}
	seen := map[string]bool{}
	for _, groups := range [][]group{e.LeftOut, e.Skips} {
		for _, g := range groups {
			if g.Reason == "" {
				return fmt.Errorf("%q have no reason", g.Specs)
			}
			if g.Without != "" && g.Without != withoutSSH {
				return fmt.Errorf("without: %q: it may be %s", g.Without, withoutSSH)
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

// withoutSSH is a provider that has no way into its nodes.
const withoutSSH = "ssh"

// among returns those of groups that hold here.
func among(groups []group, ssh bool) []group {
	var all []group
	for _, g := range groups {
		if g.Without == "" || !ssh {
			all = append(all, g)
		}
	}
	return all
}

// leftOut returns the patterns of what isn't run.
func (c config) leftOut(ssh bool) []string {
	var all []string
	for _, g := range among(c.LeftOut, ssh) {
		all = append(all, g.Specs...)
	}
	return all
}
