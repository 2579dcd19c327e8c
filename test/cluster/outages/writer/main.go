// Command writer appends records to a file that stays open. It writes a record again until fsync
// succeeds. Its second argument is the log of its events, which must be on a disk of the node.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/outages/records"
)

func main() {
	log, err := os.OpenFile(os.Args[2], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "writer:", write(os.Args[1], log))
	os.Exit(1)
}

// write writes records and their events until it fails. Errors: the log cannot be written.
func write(path string, log *os.File) error {
	say := func(kind string, n int64, err error) error {
		e := records.Event{Kind: kind, Record: n, At: time.Now()}
		if err != nil {
			e.Err = err.Error()
		}
		_, err = log.WriteString(e.String())
		return err
	}
	f, first, err := open(path)
	for err != nil { // the server may be away
		if err := say(records.Failed, first, err); err != nil {
			return err
		}
		time.Sleep(time.Second)
		f, first, err = open(path)
	}
	if err := say(records.Opened, first, nil); err != nil {
		return err
	}
	failed := false
	for n := first; ; time.Sleep(20 * time.Millisecond) {
		_, err := f.WriteAt(records.Record(n), n*records.Size)
		if err == nil {
			err = f.Sync()
		}
		switch {
		case err == nil:
			if err := say(records.Durable, n, nil); err != nil {
				return err
			}
			n++
		case !failed:
			if err := say(records.Failed, n, err); err != nil {
				return err
			}
		}
		failed = err != nil
	}
}

// open opens the file, and returns the number of the first record that is not in it.
func open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size() / records.Size, nil
}
