package connlimit

// shares is by how many the files of a process are divided. A driver has two listeners on the
// network, so half of its files are left for CSI calls and the storage. The node's sidecars have
// three.
const shares = 4

// minConns is the smallest limit of a listener: with fewer connections it serves no client.
const minConns = 8

// Share returns how many connections a listener on the network may hold: most, or a quarter of the
// files that this process may open if that is less.
func Share(most int) int { return shareOf(filesLimit(), most) }

func shareOf(files, most int) int { return max(minConns, min(most, files/shares)) }
