package mounter

// CleanPath brings a path into the one form of the Host of this system.
func (f *Fake) CleanPath(path string) (string, error) { return cleanWindows(path) }
