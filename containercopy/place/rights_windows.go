package place

// withRights calls move: Windows moves a read-only directory.
func withRights(move func() error, _ ...entry) error { return move() }

// directory is no flag here: see rights_unix.go.
const directory = 0
