package volumeid

import (
	"slices"
	"strings"
	"testing"
)

func TestIDsAreStableAcrossReleases(t *testing.T) {
	// These are in PersistentVolumes for ever: if this test fails, the change is wrong, not the
	// test.
	for got, want := range map[string]string{
		New(Volume, "node-1", "pvc-1"): "a6mbhnpn9nc14l2alua38s6l7par6ikbsr7qqm6rpav0bibfjhvnlgcj7",
		New(Inline, "node-1", "csi-1"): "i6mbhnpn9nc14l2alt3jubsm5oqq679uqb354r0ran8h806m2m1hmthjq",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestParseReadsTheIDsOfNew(t *testing.T) {
	node := strings.Repeat("n", 253)
	for name, tc := range map[string]struct {
		name string
		kind Kind
	}{
		"volume":            {"pvc-1", Volume},
		"inline volume":     {"csi-1", Inline},
		"snapshot":          {"snapshot-1", Snapshot},
		"group":             {"group-1", Group},
		"name with a slash": {"../../etc", Volume},
		"empty name":        {"", Volume},
	} {
		t.Run(name, func(t *testing.T) {
			id := New(tc.kind, node, tc.name)
			got, err := Parse(id)
			if want := (ID{Kind: tc.kind, Node: NodeDigest(node), Name: NameDigest(tc.name)}); err != nil ||
				got != want {
				t.Errorf("Parse(%q) = %+v, %v, want %+v", id, got, err, want)
			}
			if len(id) > 64 {
				t.Errorf("%q has %d bytes, over 64", id, len(id))
			}
		})
	}
}

func TestParseRefusesEverythingElse(t *testing.T) {
	good := New(Volume, "n", "v")
	for _, s := range []string{
		"", ".", "..", "a/b", "../" + good[3:], good[:56], good + "0", strings.ToUpper(good), "b" + good[1:],
		good[:56] + "w", good[:56] + "\x00", good[:54] + "а", strings.Repeat("a", 4096), "csi-" + good,
	} {
		if id, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", s, id)
		}
	}
}

func TestDifferentNamesHaveDifferentIDs(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "а" /* Cyrillic */, "A", "a ", "a\u0301", "á"} {
		for _, node := range []string{"n", "n2"} {
			id := New(Volume, node, name)
			if other, ok := seen[id]; ok {
				t.Errorf("%q on %s and %s have one ID", name, node, other)
			}
			seen[id] = name + " on " + node
		}
	}
}

func TestNodeNames(t *testing.T) {
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c",
		60) + "." + strings.Repeat("d", 60)
	for name, tc := range map[string]struct{ node, id, segment string }{
		"short": {"node-1.example", "node-1.example", "node-1.example"},
		"64 bytes": {strings.Repeat("a", 64), strings.Repeat("a", 64),
			"node-" + NodeDigest(strings.Repeat("a", 64))},
		"253 bytes":           {long, "node-" + NodeDigest(long), "node-" + NodeDigest(long)},
		"not a legal value":   {"-node", "-node", "node-" + NodeDigest("-node")},
		"Windows' upper case": {"WIN-ABC", "WIN-ABC", "WIN-ABC"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := CheckNode(tc.node); err != nil {
				t.Errorf("CheckNode: %v", err)
			}
			if got := NodeID(tc.node); got != tc.id {
				t.Errorf("NodeID = %q, want %q", got, tc.id)
			}
			if got := Segment(tc.node); got != tc.segment || len(got) > 63 {
				t.Errorf("Segment = %q, want %q", got, tc.segment)
			}
		})
	}
	for _, bad := range []string{"", strings.Repeat("a", 254), "a b", "a\n", "a/b", "ä"} {
		if CheckNode(bad) == nil {
			t.Errorf("CheckNode(%q) = nil, want an error", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(New(Volume, "n", "v"))
	f.Add(New(Group, "n", "v"))
	f.Add("../../etc/passwd")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := Parse(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(s, "/\\.\x00") || len(s) > 64 || len(id.Node) != nodeLen {
			t.Errorf("Parse(%q) = %+v", s, id)
		}
	})
}

func TestAnIDIsFoundByEachNameOfItsNode(t *testing.T) {
	short := "node-" + NodeDigest("x") // a name like that of a long one
	for name, node := range map[string]string{"short": "n", "long": strings.Repeat("n", 253),
		"looks like a long one": short} {
		t.Run(name, func(t *testing.T) {
			id, err := Parse(New(Volume, node, "v"))
			if got := NodeDigests(NodeID(node)); err != nil || !slices.Contains(got, id.Node) || len(got) > 2 {
				t.Errorf("NodeDigests = %q, and the ID has %q, %v", got, id.Node, err)
			}
		})
	}
	if err := CheckNode(SeveralNodes); err == nil {
		t.Error("a node may be called as groups over nodes are")
	}
}
