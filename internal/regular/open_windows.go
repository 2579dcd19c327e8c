package regular

// noWait is nothing: a directory of Windows has no FIFOs.
const noWait = 0
