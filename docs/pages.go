// Package docs has the pages from which kubectl causeway doctor takes causes and remedies.
package docs

import _ "embed"

// Pages of how-to.
var (
	//go:embed how-to/troubleshooting.md
	Troubleshooting string
	//go:embed how-to/smb.md
	SMB string
)
