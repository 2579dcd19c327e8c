//go:build !race

package nodes

const raceFlag = "-race=false"
