package links

import "github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"

// bench is a bench on a model of a machine with links.
type bench struct{ *mountercontract.Bench }
