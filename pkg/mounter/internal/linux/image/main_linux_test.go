package image_test

import (
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

func TestMain(m *testing.M) { linuxtest.Main(m) }
