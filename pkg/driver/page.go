package driver

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// maxPage is how many volumes or snapshots one page has at the most, whatever is asked for. It keeps a response under 1 MiB.
const maxPage = 2000

// maxNodeBytes is how much of one page may be IDs of nodes to which volumes are attached.
const maxNodeBytes = 4 << 20

// fitting returns how many of the first volumes fit on one page, because of the nodes that they are attached to.
func fitting(volumes []backend.Volume) int {
	size := 0
	for i, v := range volumes {
		for _, node := range v.Nodes {
			size += len(node) + 3 // bytes around a string in protobuf
		}
		if size > maxNodeBytes && i > 0 { // one volume there must be, or a list never ends
			return i
		}
	}
	return len(volumes)
}

// A paging token is the ID of the last volume or snapshot of the page before, so it holds whatever comes and goes, restarts too.
// The sum in front tells our tokens from others.

func nextToken(last string) string { return tokenSum(last) + "." + last }

// parsePage returns after which ID a page starts and how many entries it may have.
// Errors: errToken, ErrInvalid for a negative number.
func parsePage(token string, entries int32) (after string, limit int, err error) {
	switch {
	case entries < 0:
		return "", 0, fmt.Errorf("%w: max_entries is %d", backend.ErrInvalid, entries)
	case entries == 0 || entries > maxPage:
		entries = maxPage
	}
	if token == "" {
		return "", int(entries), nil
	}
	sum, last, ok := strings.Cut(token, ".")
	if !ok || sum != tokenSum(last) {
		return "", 0, fmt.Errorf("%w: %.64q was not handed out by this driver: start with no token", errToken, token)
	}
	return last, int(entries), nil
}

func tokenSum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	return hex.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}
