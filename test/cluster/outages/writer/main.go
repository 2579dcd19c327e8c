// Command writer appends records to a file that stays open. It writes a record again until fsync
// succeeds, and prints one line for each event: what happened, the number of the record, the time in
// milliseconds since 1970, and the error.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/outages/records"
)

func main() {
	f, first, err := open(os.Args[1])
	for err != nil { // the server may be away
		say("failed", first, err)
		time.Sleep(time.Second)
		f, first, err = open(os.Args[1])
	}
	say("opened", first, nil)
	failed := false
	for n := first; ; {
		_, err := f.WriteAt(records.Record(n), n*records.Size)
		if err == nil {
			err = f.Sync()
		}
		switch {
		case err == nil && (failed || n%10 == 0 || n == first):
			say("durable", n, nil)
		case err != nil && !failed:
			say("failed", n, err)
		}
		if failed = err != nil; !failed {
			n++
		}
		time.Sleep(20 * time.Millisecond)
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

func say(event string, n int64, err error) {
	fmt.Println(event, n, time.Now().UnixMilli(), err)
}
