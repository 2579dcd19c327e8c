// Package rules tests the rules of the chart of container copy. It has tests only: make test-rules.
package rules
