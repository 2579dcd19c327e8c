//go:build winetest

package win

import (
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// library is that of a test under Wine, which has no COM: the init of microsoft/wmi would panic.
type library struct{}

var errNoLibrary = fmt.Errorf("%w: a build for Wine is without csi-proxy", errors.ErrUnsupported)

func (library) Mapping(string) (links.ShareMapping, error) { return links.ShareMapping{}, errNoLibrary }

func (library) MapShare(string, mounter.Credentials, bool) error { return errNoLibrary }

func (library) UnmapShare(string) error { return errNoLibrary }
