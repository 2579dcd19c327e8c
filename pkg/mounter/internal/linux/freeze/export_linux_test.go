package freeze

// For the tests of this package with a Host.

type Frozen = frozen

var Allocated = allocated
var Backing = (frozen).backing
var ImagesAt = imagesAt
var NewWindow = newWindow
var SyncAll = syncAll
var Thaw = (*window).thaw
