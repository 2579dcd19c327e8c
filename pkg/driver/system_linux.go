package driver

import (
	"os"
	"strings"
)

// operatingSystem is the value of SystemKey.
const operatingSystem = "linux"

// bootID returns a text that differs after each boot of the kernel, or "" if it cannot be read:
// /proc/sys/kernel/random/boot_id in random(4).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
