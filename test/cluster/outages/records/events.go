package records

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kinds of events.
const (
	Opened  = "opened"  // the file; the record is the first that is not in it
	Durable = "durable" // fsync of the record succeeded
	Failed  = "failed"  // an operation, the first of several for the same record
)

// Event is a line in the log of a writer.
type Event struct {
	Kind   string
	Record int64
	At     time.Time
	Err    string // of a failed operation
}

// String returns the line of an event.
func (e Event) String() string {
	return fmt.Sprintf("%s %d %d %s\n", e.Kind, e.Record, e.At.UnixMilli(), e.Err)
}

// Parse returns the events of a log, in the order of their times: a log can be put together from
// those of several machines. An incomplete last line is ignored, because the writer may be writing
// it. Errors: a line is not an event; a file was opened with fewer records than were durable
// before.
func Parse(log string) (all []Event, err error) {
	for line := range strings.Lines(log) {
		line, complete := strings.CutSuffix(line, "\n")
		if !complete {
			continue
		}
		fields := strings.SplitN(line, " ", 4)
		if len(fields) != 4 {
			return nil, fmt.Errorf("%q is no event", line)
		}
		record, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no event: %w", line, err)
		}
		at, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no event: %w", line, err)
		}
		all = append(all, Event{fields[0], record, time.UnixMilli(at), fields[3]})
	}
	slices.SortStableFunc(all, func(a, b Event) int { return a.At.Compare(b.At) })
	last := int64(-1)
	for _, e := range all {
		if e.Kind == Opened && e.Record <= last {
			return nil, fmt.Errorf("%d records are left of %d that were durable", e.Record, last+1)
		}
		if e.Kind == Durable {
			last = e.Record
		}
	}
	return all, nil
}

// Last returns the last durable record, or -1.
func Last(all []Event) int64 {
	for _, e := range slices.Backward(all) {
		if e.Kind == Durable {
			return e.Record
		}
	}
	return -1
}

// Effect is that of an outage on a writer.
type Effect struct {
	Errors  []string      // each error number once, in words
	Silence time.Duration // the longest time without a durable record
	Failing time.Duration // the longest time from a failed operation to a durable record
}

// Since returns the effect that the events after a time show.
func Since(all []Event, begin time.Time) (f Effect) {
	durable, failed := begin, time.Time{}
	for _, e := range all {
		if e.At.Before(begin) {
			continue
		}
		switch e.Kind {
		case Failed:
			if failed.IsZero() {
				failed = e.At
			}
			text := e.Err[strings.LastIndex(e.Err, ":")+1:]
			if text = strings.TrimSpace(text); !slices.Contains(f.Errors, text) {
				f.Errors = append(f.Errors, text)
			}
		case Durable:
			f.Silence = max(f.Silence, e.At.Sub(durable))
			if !failed.IsZero() {
				f.Failing = max(f.Failing, e.At.Sub(failed))
			}
			durable, failed = e.At, time.Time{}
		}
	}
	return f
}
