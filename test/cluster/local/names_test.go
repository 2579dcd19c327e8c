package local

import "testing"

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"causeway": true, "a": true, "a-1": true, "": false, "-a": false, "a-": false, "A": false, "1": false, "a/b": false, "..": false,
		"abcdefghijklmnopqrstuvwxyz012345": true, "abcdefghijklmnopqrstuvwxyz0123456": false,
	} {
		if err := checkName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
		if link := hostLink(name); len(link) > 15 {
			t.Errorf("%q has the network device %q, which is longer than 15 bytes", name, link)
		}
	}
}
