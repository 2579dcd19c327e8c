// Package result is the result of a run of the storage suite, in a form for programs.
package result

import (
	"encoding/json"
	"os"
	"time"
)

// Result is a run of the suite with a configuration: the file CONFIGURATION.json of a report.
type Result struct {
	Configuration string `json:"configuration"` // such as hostpath-image
	Driver        string `json:"driver"`        // its CSI name
	// Scope is "full" for every spec of the configuration, "smoke" for a spec of each suite, or
	// "focus" for the specs of a pattern.
	Scope    string `json:"scope"`
	Provider string `json:"provider"` // who ran the cluster
	Nodes    int    `json:"nodes"`
	// specs that ran at the same time; those with [Serial] or [Disruptive] ran alone
	Procs    int               `json:"procs"`
	Start    time.Time         `json:"start"`
	Seconds  float64           `json:"seconds"` // from the start of the first spec to the end of the last
	CPU      CPU               `json:"cpuSeconds"`
	Versions map[string]string `json:"versions"` // by component
	Counts   Counts            `json:"counts"`
	Specs    []Spec            `json:"specs"` // in order of their names
	// Problems are the reasons for which the run is not good: failed specs, unexpected skips, too
	// few passes, remains. A good run has none.
	Problems []string `json:"problems"`
}

// CPU is the CPU time in seconds during Result.Seconds.
type CPU struct {
	Suite   float64 `json:"suite"`             // the suite's own processes
	Machine float64 `json:"machine,omitempty"` // the whole machine; left out if the cluster is elsewhere
}

// Counts are how many specs there are of each state. Selected is passed, skipped and failed
// together.
type Counts struct {
	Selected int `json:"selected"`
	Passed   int `json:"passed"`
	Skipped  int `json:"skipped"` // by the suite, when they were run
	Failed   int `json:"failed"`
	LeftOut  int `json:"leftOut"` // not run, as the configuration describes
}

// State is the result of a spec.
type State string

// The states.
const (
	Passed  State = "passed"
	Skipped State = "skipped"
	Failed  State = "failed"
	LeftOut State = "leftOut"
)

// Spec is a spec of the configuration.
type Spec struct {
	// Name has all that Kubernetes calls it, but for "External Storage [Driver: …] ", which is the
	// same for all.
	Name    string  `json:"name"`
	Suite   string  `json:"suite"` // such as subPath
	State   State   `json:"state"`
	Seconds float64 `json:"seconds"`
	// Message is the suite's message for a spec that failed or was skipped.
	Message string `json:"message,omitempty"`
	// Reason is why it is right that the spec was skipped or left out, as the configuration
	// describes.
	Reason string `json:"reason,omitempty"`
}

// Write writes a result as JSON.
func (r Result) Write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Read reads the output of Write.
func Read(path string) (Result, error) {
	var r Result
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}
