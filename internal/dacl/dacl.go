// Package dacl protects files on Windows, which has no file modes: a discretionary access control
// list says who may use a file.
package dacl

// Access is who may use a file, beside its owner, SYSTEM and the group Administrators.
type Access bool

// Accesses.
const (
	Private Access = false
	Users   Access = true // the group Users, which ContainerUser is in: all but a change of the list
)
