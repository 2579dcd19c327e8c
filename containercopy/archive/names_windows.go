package archive

func checkLocal(element string) error { return checkWindows(element) }
