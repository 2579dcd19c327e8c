package place

// withRights calls move: Windows moves a read-only directory.
func withRights(move func() error, _ ...entry) error { return move() }

// directory is 0: Windows has no such flag.
const directory = 0
