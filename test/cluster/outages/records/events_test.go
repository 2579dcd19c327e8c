package records

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	at := time.UnixMilli(1000)
	first := Event{Opened, 0, at, ""}.String() + Event{Durable, 0, at.Add(2), ""}.String()
	second := Event{Opened, 1, at.Add(time.Second), ""}.String() + Event{Durable, 1, at.Add(time.Second), ""}.String()
	all, err := Parse(second + first + "durable 7 20")
	if err != nil || len(all) != 4 || all[0].Record != 0 || Last(all) != 1 {
		t.Errorf("Parse: %+v, %v", all, err)
	}
	if last := Last(nil); last != -1 {
		t.Errorf("Last of no event is %d", last)
	}
	lost := first + Event{Durable, 1, at.Add(3), ""}.String() + Event{Opened, 1, at.Add(time.Second), ""}.String()
	for _, bad := range []string{"durable 1\n", "durable x 1 \n", "durable 1 x \n", lost} {
		if all, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q): %+v", bad, all)
		}
	}
	if _, err := Parse(lost); err == nil || !strings.Contains(err.Error(), "1 records are left of 2") {
		t.Errorf("a lost record: %v", err)
	}
}

func TestSince(t *testing.T) {
	begin := time.UnixMilli(1000)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	got := Since([]Event{
		{Failed, 0, at(-9), "open /x: before"},
		{Durable, 0, at(-5), ""},
		{Durable, 1, at(1), ""},
		{Failed, 2, at(3), "sync /x: host is down"},
		{Failed, 2, at(5), "open /x: host is down"},
		{Failed, 2, at(6), "open /x: input/output error"},
		{Durable, 2, at(8), ""},
		{Durable, 3, at(9), ""},
		{Failed, 4, at(10), "sync /x: host is down"},
		{Durable, 4, at(11), ""},
	}, begin)
	want := Effect{[]string{"host is down", "input/output error"}, 7 * time.Second, 5 * time.Second}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Since: %+v, want %+v", got, want)
	}
}
