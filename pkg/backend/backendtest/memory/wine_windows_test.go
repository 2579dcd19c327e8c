package memory

import _ "github.com/causeway-csi/causeway/internal/winetest"
