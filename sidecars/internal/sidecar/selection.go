package sidecar

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// choose reads --controllers as kube-controller-manager reads its own: names, * for all that needn't be named, and -name for
// one less. It returns those that are on, in the registry's order.
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
		return nil, fmt.Errorf("--controllers=%s leaves nothing to run: name one of %s, or * for all but those that must be named", list, strings.Join(names(registry), ", "))
	}
	return on, nil
}

// words takes the list apart, and refuses what isn't in the registry or contradicts itself.
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
			return nil, fmt.Errorf("--controllers: there is no controller %q: there are %s", name, strings.Join(known, ", "))
		}
		asked[word] = true
	}
	for _, name := range known {
		if asked[name] && asked["-"+name] {
			return nil, fmt.Errorf("--controllers: both %s and -%s: take one away", name, name)
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
