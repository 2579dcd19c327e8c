package container

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const status = `Name:	app
Umask:	0027
State:	S (sleeping)
Uid:	201000	201000	201000	201000
Gid:	201001	201001	201001	201001
Groups:	200000 201005 
CapEff:	00000000a80425fb
`

func TestIdentity(t *testing.T) {
	m, err := parseMap([]byte("         0     200000      65536\n     70000    300000 1\n"))
	if err != nil || !reflect.DeepEqual(m, []IDMap{{0, 200000, 65536}, {70000, 300000, 1}}) {
		t.Fatal(m, err)
	}
	id, err := parseStatus([]byte(status), m, m)
	want := Identity{UID: 1000, GID: 1001, Groups: []int{0, 1005}, Capabilities: 0xa80425fb, Umask: 0o27, UIDs: m, GIDs: m}
	if err != nil || !reflect.DeepEqual(id, want) {
		t.Errorf("got %+v, %v, want %+v", id, err, want)
	}
	for name, change := range map[string][2]string{
		"no uid": {"Uid", "X"}, "an ID outside": {"201000\t201000\t201000\t201000", "5\t5\t5\t5"}, "a group outside": {"201005", "9"},
		"no number": {"0027", "x"}, "short": {"Uid:	201000	201000	201000", "Uid:"},
	} {
		if id, err := parseStatus([]byte(strings.Replace(status, change[0], change[1], 1)), m, m); err == nil {
			t.Errorf("%s: %+v", name, id)
		}
	}
	for _, raised := range [][2]string{{"201000\t201000\t201000\t201000", "201000\t200000\t200000\t200000"}, {"201001\n", "200000\n"}} {
		text := strings.Replace(status, raised[0], raised[1], 1)
		if id, err := parseStatus([]byte(text), m, m); text == status || !errors.Is(err, ErrRaised) {
			t.Errorf("%q: %+v, %v, want ErrRaised", raised[1], id, err)
		}
	}
	for _, bad := range []string{"", "0 1\n", "a b c\n"} {
		if m, err := parseMap([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, m)
		}
	}
}
