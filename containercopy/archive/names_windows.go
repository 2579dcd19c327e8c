package archive

func checkLocal(element string) error { return checkWindows(element) }

// onWindows is true in a program for Windows.
const onWindows = true
