package filesystem

// For the tests of this package with a Host.

var GrowSlots = growSlots
