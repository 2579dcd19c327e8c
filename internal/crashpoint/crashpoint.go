// Package crashpoint names the moments at which the crash tests kill the driver. A build without
// the tag crashpoints has none of it: Reached is empty there and costs nothing.
package crashpoint

// Env is the environment variable with the point at which a driver built with the tag dies: the
// name of a point, and optionally ":n" to die when it is reached for the nth time.
const Env = "CAUSEWAY_CRASH_AT"
