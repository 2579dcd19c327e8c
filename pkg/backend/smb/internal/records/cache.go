package records

import (
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Cache keeps records that were listed, by path. A record that changes is another file with
// another time.
type Cache struct {
	mu    sync.Mutex
	files map[string]cached
}

type cached struct {
	modified time.Time
	size     int64
	record   any
}

// maxCached is the maximum number of records in a cache.
const maxCached = 20000

// Get returns the record of a listed file, from the cache or by read.
func (c *Cache) Get(path string, e client.Entry, read func() (any, error)) (any, error) {
	c.mu.Lock()
	known, ok := c.files[path]
	c.mu.Unlock()
	if ok && known.modified.Equal(e.Modified) && known.size == e.Size {
		return known.record, nil
	}
	r, err := read()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil || len(c.files) >= maxCached {
		c.files = map[string]cached{}
	}
	c.files[path] = cached{e.Modified, e.Size, r}
	return r, nil
}

// CacheKey returns the key of a record in the cache.
func CacheKey(source mounter.ShareSource, dir, key string) string {
	return source.String() + "\x00" + dir + "/" + key
}
