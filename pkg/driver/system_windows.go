package driver

// operatingSystem is the value of SystemKey.
const operatingSystem = "windows"

// bootID returns "": this system does not tell.
func bootID() string { return "" }
