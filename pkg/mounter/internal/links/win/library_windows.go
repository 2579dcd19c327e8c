//go:build !winetest

package win

import (
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/kubernetes-csi/csi-proxy/v2/pkg/cim"
)

// library has the calls of csi-proxy. No other file imports it. Each call has a COM thread of its
// own. A property that is NULL can make the library panic, and no call takes a context: only a
// worker, and the goroutine of removals, make calls.
//
// A program with this file does not start where COM is missing: the init of microsoft/wmi v0.34.0
// panics (kubernetes-csi/csi-proxy#411).
type library struct{}

func (library) Mapping(root string) (m links.ShareMapping, err error) {
	err = cim.WithCOMThread(func() error {
		instance, err := cim.QuerySmbGlobalMappingByRemotePath(root)
		if cim.IsNotFound(err) {
			return links.NotExist("mapping", root)
		}
		if err != nil {
			return libraryError(err)
		}
		defer instance.Close()
		m.Status = links.MappingStatus(cim.SmbMappingStatusUnavailable)
		if status, err := instance.GetProperty("Status"); err != nil {
			return libraryError(err)
		} else if status, ok := status.(int32); ok { // nil: NULL
			m.Status = links.MappingStatus(status)
		}
		// Without the property, it is not known whether the mapping demands encryption.
		if privacy, err := instance.GetProperty("RequirePrivacy"); err == nil {
			m.Privacy, _ = privacy.(bool)
		}
		return nil
	})
	return m, err
}

func (library) MapShare(root string, c mounter.Credentials, privacy bool) error {
	user := c.Username
	if c.Domain != "" {
		user = c.Domain + `\` + user
	}
	return cim.WithCOMThread(func() error {
		code, err := cim.NewSmbGlobalMapping(root, user, c.Password, privacy)
		if err == nil {
			err = resultOf(code)
		}
		return libraryError(err)
	})
}

func (library) UnmapShare(root string) error {
	return cim.WithCOMThread(func() error {
		instance, err := cim.QuerySmbGlobalMappingByRemotePath(root)
		if cim.IsNotFound(err) {
			return links.NotExist("unmap", root)
		}
		if err != nil {
			return libraryError(err)
		}
		defer instance.Close()
		code, err := instance.InvokeMethodWithReturn("Remove", true) // also with open files
		if err == nil {
			err = resultOf(int(code))
		}
		return libraryError(err)
	})
}

// resultOf returns the error of the return value of a method: a code of Windows, or an HRESULT with
// such a code.
func resultOf(value int) error {
	if value == 0 {
		return nil
	}
	return links.CodeOfResult(uint32(int32(value)))
}

// libraryError gives an error of COM its code, if it has one. *ole.OleError has such a method.
func libraryError(err error) error {
	var com interface{ Code() uintptr }
	if errors.As(err, &com) {
		return fmt.Errorf("%w: %w", links.CodeOfResult(uint32(com.Code())), err)
	}
	return err
}
