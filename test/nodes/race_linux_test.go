//go:build race

package nodes

// The drivers have the race detector if the tests have it.
const raceFlag = "-race=true"
