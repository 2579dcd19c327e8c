package beneath

// Sync does nothing: Windows refuses to flush a directory, and NTFS journals renames by itself.
func (d *Dir) Sync(string) error { return nil }
