package driver

// operatingSystem is the value of SystemKey.
const operatingSystem = "linux"
