// Package container opens a running container on its node, and starts workers in it. A container is
// known by its first process: everything about it is read through descriptors that stay with this
// process, so that another process which gets its number is never taken for it.
package container

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Errors of Open.
var (
	// ErrGone: the container has ended.
	ErrGone = errors.New("the container is not running")
	// ErrNotContained: the process is not one of the container, or has the files of the node, as
	// those of a virtual machine or of a sandbox do.
	ErrNotContained = errors.New("the process of the container does not have a root directory of its own")
	// ErrRaised: the process has another user than the container at this moment, as a set-user-ID
	// program has. A copy must not get its rights.
	ErrRaised = errors.New("the first process of the container has several users or groups at once")
)

// IDMap is a line of a uid_map or gid_map. user_namespaces(7).
type IDMap struct{ Inside, Outside, Size int }

// Identity is the identity of the first process of a container. IDs are those in its user
// namespace.
type Identity struct {
	UID, GID     int
	Groups       []int
	Capabilities uint64 // effective
	Umask        int
	UIDs, GIDs   []IDMap
}

// parseMap parses a uid_map or gid_map.
func parseMap(text []byte) (all []IDMap, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var m IDMap
		if _, err := fmt.Sscan(lines.Text(), &m.Inside, &m.Outside, &m.Size); err != nil {
			return nil, fmt.Errorf("the map %.64q: %w", lines.Text(), err)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, errors.New("the map of IDs is empty")
	}
	return all, lines.Err()
}

// inside returns an ID in the user namespace of a map. Errors: an ID that the map does not have.
func inside(all []IDMap, outside int) (int, error) {
	for _, m := range all {
		if outside >= m.Outside && outside-m.Outside < m.Size {
			return outside - m.Outside + m.Inside, nil
		}
	}
	return 0, fmt.Errorf("the ID %d is not in the user namespace of the container", outside)
}

// parseStatus parses a status of proc(5). The IDs in it are those of the reader.
func parseStatus(text []byte, uids, gids []IDMap) (Identity, error) {
	fields := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, values, _ := strings.Cut(line, ":")
		fields[name] = strings.Fields(values)
	}
	id := Identity{UIDs: uids, GIDs: gids}
	var problems []error
	number := func(text string, base int) int {
		n, err := strconv.ParseUint(text, base, 63)
		problems = append(problems, err)
		return int(n)
	}
	within := func(m []IDMap, text string) int {
		n, err := inside(m, number(text, 10))
		problems = append(problems, err)
		return n
	}
	for name, least := range map[string]int{"Uid": 4, "Gid": 4, "CapEff": 1, "Umask": 1} {
		if len(fields[name]) < least {
			return id, fmt.Errorf("the status of the process has no %s", name)
		}
	}
	for _, name := range []string{"Uid", "Gid"} {
		if ids := slices.Compact(slices.Clone(fields[name][:4])); len(ids) != 1 {
			return id, fmt.Errorf("%w: %s %s", ErrRaised, name, strings.Join(fields[name], " "))
		}
	}
	id.UID, id.GID = within(uids, fields["Uid"][3]), within(gids, fields["Gid"][3]) // of filesystems
	id.Umask, id.Capabilities = number(fields["Umask"][0], 8), uint64(number(fields["CapEff"][0], 16))
	for _, g := range fields["Groups"] {
		id.Groups = append(id.Groups, within(gids, g))
	}
	slices.Sort(id.Groups)
	return id, errors.Join(problems...)
}
