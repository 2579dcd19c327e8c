package sidecar

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// choose returns the controllers that --controllers selects, in the order of the registry. The
// syntax is that of kube-controller-manager: names, "*" for all controllers without Needs.ByName,
// and -name to leave a controller out.
func choose(list string, registry []Controller) ([]Controller, error) {
	asked, err := words(list, registry)
	if err != nil {
		return nil, err
	}
	var on []Controller
	for _, c := range registry {
		if asked[c.Name()] || asked["*"] && !asked["-"+c.Name()] && !c.Needs().ByName {
			on = append(on, c)
		}
	}
	if len(on) == 0 {
		return nil, fmt.Errorf("--controllers=%s leaves nothing to run: name one of %s, or * for all but those that "+
			"must be named", list, strings.Join(names(registry), ", "))
	}
	return on, nil
}

// words splits the list. It rejects unknown names and contradictions.
func words(list string, registry []Controller) (map[string]bool, error) {
	known := names(registry)
	asked := map[string]bool{}
	for _, word := range strings.Split(list, ",") {
		word = strings.TrimSpace(word)
		name := strings.TrimPrefix(word, "-")
		switch {
		case word == "":
			continue
		case word != "*" && !slices.Contains(known, name):
			return nil, fmt.Errorf("invalid --controllers: unknown controller %q: must be one of %s", name,
				strings.Join(known, ", "))
		}
		asked[word] = true
	}
	for _, name := range known {
		if asked[name] && asked["-"+name] {
			return nil, fmt.Errorf("invalid --controllers: both %s and -%s: remove one of them", name, name)
		}
	}
	return asked, nil
}

func names(registry []Controller) []string {
	var all []string
	for _, c := range registry {
		all = append(all, c.Name())
	}
	return all
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
