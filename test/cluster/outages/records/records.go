// Package records has the records that pods write in the tests of outages.
package records

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Size is the size of a record in bytes.
const Size = 128

// Record returns the record with a number: the number, and bytes that depend on it.
func Record(n int64) []byte {
	sum := sha256.Sum256(fmt.Append(nil, "record ", n))
	text := fmt.Sprintf("%019d %s", n, hex.EncodeToString(sum[:]))
	return fmt.Appendf(nil, "%-*s\n", Size-1, text)
}

// Check returns an error unless content has the records from 0 to last, byte for byte.
func Check(content []byte, last int64) error {
	for n := range last + 1 {
		at := n * Size
		if int64(len(content)) < at+Size {
			return fmt.Errorf("record %d of %d is missing: there are %d bytes", n, last, len(content))
		}
		if got := content[at : at+Size]; string(got) != string(Record(n)) {
			return fmt.Errorf("record %d of %d is %q", n, last, got)
		}
	}
	return nil
}
