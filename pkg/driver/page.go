package driver

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// maxPage is the maximum number of volumes or snapshots on a page, also if the request allows more.
// With this limit, a response without node IDs is smaller than 1 MiB.
const maxPage = 2000

// maxNodeBytes is the maximum size of the node IDs on a page, in bytes. Volumes have the IDs of the
// nodes to which they are attached.
const maxNodeBytes = 4 << 20

// fitting returns the number of volumes, from the first, that fit on a page with the IDs of their
// nodes.
func fitting(volumes []backend.Volume) int {
	size := 0
	for i, v := range volumes {
		for _, node := range v.Nodes {
			size += len(node) + 3 // bytes around a string in protobuf
		}
		if size > maxNodeBytes && i > 0 { // a page without a volume would never end the list
			return i
		}
	}
	return len(volumes)
}

// A paging token is the ID of the last volume or snapshot of the previous page. So it stays valid
// when objects are created or deleted, and after a restart. The checksum in front of the ID
// identifies the tokens of this driver.

func nextToken(last string) string { return tokenSum(last) + "." + last }

// parsePage returns the ID after which a page starts, and the maximum number of its entries.
// Errors: errToken; ErrInvalid for a negative number.
func parsePage(token string, entries int32) (after string, limit int, err error) {
	switch {
	case entries < 0:
		return "", 0, fmt.Errorf("%w: invalid max_entries %d: must not be negative", backend.ErrInvalid, entries)
	case entries == 0 || entries > maxPage:
		entries = maxPage
	}
	if token == "" {
		return "", int(entries), nil
	}
	sum, last, ok := strings.Cut(token, ".")
	if !ok || sum != tokenSum(last) {
		return "", 0, fmt.Errorf("%w: %.64q is not from this driver: start without a token", errToken, token)
	}
	return last, int(entries), nil
}

func tokenSum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	return hex.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}
