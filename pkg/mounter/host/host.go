// Package host returns the machine of this process as a mounter.Host: that of Linux mounts with the
// kernel, that of Windows makes links, and other systems have none.
package host

import "github.com/causeway-csi/causeway/internal/helper"

// Main must be the first call of a program that uses Freeze, Grow or Trim, or of TestMain. In a
// helper process of a Host it does not return. Elsewhere it does nothing.
func Main() { helper.Main(HelperTasks()) }
