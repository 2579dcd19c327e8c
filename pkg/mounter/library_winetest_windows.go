//go:build winetest

package mounter

import (
	"errors"
	"fmt"
)

// library is that of a test under Wine, which has no COM: the init of microsoft/wmi would panic.
type library struct{}

var errNoLibrary = fmt.Errorf("%w: a build for Wine is without csi-proxy", errors.ErrUnsupported)

func (library) mapping(string) (shareMapping, error) { return shareMapping{}, errNoLibrary }

func (library) mapShare(string, Credentials, bool) error { return errNoLibrary }

func (library) unmapShare(string) error { return errNoLibrary }
