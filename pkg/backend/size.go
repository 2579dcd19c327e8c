package backend

import (
	"fmt"
	"math"
	"strings"
)

// sizeUnits are the suffixes of Kubernetes quantities that are useful for a size in bytes.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"", 1},
}

// ParseSize parses a size such as "10Gi" and returns it in bytes. The size is a whole number of at
// least 1 with an optional suffix: k, M, G, T and P for powers of 1000, Ki, Mi, Gi, Ti and Pi for
// powers of 1024. Errors: [ErrInvalid].
func ParseSize(s string) (int64, error) {
	bad := fmt.Errorf("%w: invalid size %.32q: must be a whole number such as 10Gi", ErrInvalid, s)
	for _, unit := range sizeUnits {
		digits, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		var n int64
		for _, c := range []byte(digits) {
			if c < '0' || c > '9' || n > (math.MaxInt64/unit.bytes-9)/10 {
				return 0, bad
			}
			n = n*10 + int64(c-'0')
		}
		if n == 0 {
			return 0, bad
		}
		return n * unit.bytes, nil
	}
	return 0, bad
}
