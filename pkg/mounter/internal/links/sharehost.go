package links

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// ShareHost has the calls of a machine whose shares are mapped, such as Windows. A mapping gives
// the whole machine a session with a share. Any call may block for minutes, and may panic. Only
// UnmapShare is called beside other calls. A root is that of RootOf.
type ShareHost interface {
	// Mapping returns the mapping of a root. Errors: fs.ErrNotExist.
	Mapping(root string) (ShareMapping, error)
	// MapShare maps a root. The error is a hint: the mapping may be there in spite of it, and may
	// be missing without it.
	MapShare(root string, c mounter.Credentials, privacy bool) error
	// UnmapShare removes the mapping of a root. Errors: fs.ErrNotExist.
	UnmapShare(root string) error
	// Probe follows links, asks the server for the directory at path, and opens nothing in it.
	// Errors: fs.ErrNotExist; a WindowsCode.
	Probe(path string) error
	// ShareUsage is LinkHost.usage for a directory of a share.
	ShareUsage(path string) (mounter.Usage, error)
}

// ShareMapping is a mapping of a machine.
type ShareMapping struct {
	Status  MappingStatus
	User    string // as UserOf; "": unknown
	Privacy bool   // it demands encryption; false: perhaps not
}

// MappingStatus is the Status of an MSFT_SmbGlobalMapping. It decides nothing: Disconnected is
// normal for an idle mapping, and stale after a reboot.
type MappingStatus int32

func (s MappingStatus) String() string {
	names := []string{"OK", "Paused", "Disconnected", "NetworkError", "Connecting", "Reconnecting", "Unavailable"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("status %d", int32(s))
	}
	return names[s]
}

// WindowsCode is an error code of Windows, on any system.
// https://learn.microsoft.com/windows/win32/debug/system-error-codes
type WindowsCode uint32

func (c WindowsCode) Error() string { return fmt.Sprintf("Windows error %d", uint32(c)) }

// Is reports whether a missing file or directory is the reason.
func (c WindowsCode) Is(target error) bool {
	return target == fs.ErrNotExist && (c == CodeFileNotFound || c == CodePathNotFound)
}

// CodeOfResult returns the code of an HRESULT of Windows (0x8007….), or result itself.
func CodeOfResult(result uint32) WindowsCode {
	if result>>16 == 0x8007 {
		result &= 0xffff
	}
	return WindowsCode(result)
}

// Codes of Windows: [MS-ERREF] 2.2.
const (
	CodeFileNotFound      WindowsCode = 2
	CodePathNotFound      WindowsCode = 3
	CodeAccessDenied      WindowsCode = 5
	codeSharingViolation  WindowsCode = 32
	codeBadNetPath        WindowsCode = 53
	codeNetNameDeleted    WindowsCode = 64
	CodeBadNetName        WindowsCode = 67
	CodeSessionConflict   WindowsCode = 1219
	CodeLogonFailure      WindowsCode = 1326
	codeSymlinkClassIsOff WindowsCode = 1463
)

// codeClasses are the errors of this package for codes of Windows, with their reasons.
var codeClasses = []struct {
	class  error
	reason string
	codes  []WindowsCode
}{
	{mounter.ErrServer, "the server or the network does not answer, or ended the session",
		[]WindowsCode{51, codeBadNetPath, 54, 55, 59, codeNetNameDeleted, 121, 1214, 1222, 1225, 1231, 1232, 1236}},
	{mounter.ErrNotFound, "the server has no such share", []WindowsCode{CodeBadNetName}},
	{mounter.ErrNotFound, "no such directory", []WindowsCode{CodeFileNotFound, CodePathNotFound}},
	{mounter.ErrAccess, "the server refuses this user, or this password",
		[]WindowsCode{CodeAccessDenied, 65, 86, CodeLogonFailure, 1327, 1328, 1330, 1331, 1907, 1909}},
	{mounter.ErrBusy, "a file of the share is in use", []WindowsCode{codeSharingViolation}},
	{mounter.ErrBusy, "a session with this server exists, of another user: Windows permits one user for a server. " +
		"Use the same user for all shares of the server, or end the other sessions: Get-SmbGlobalMapping and " +
		"Get-SmbConnection show them", []WindowsCode{CodeSessionConflict}},
	{errors.ErrUnsupported, "a policy of the node forbids links from local to remote paths: allow them with " +
		"fsutil behavior set SymlinkEvaluation L2R:1", []WindowsCode{codeSymlinkClassIsOff}},
}

// Classify gives an error of a ShareHost its class, with the reason.
func Classify(err error) error {
	var code WindowsCode
	if errors.As(err, &code) {
		for _, c := range codeClasses {
			if slices.Contains(c.codes, code) {
				return fmt.Errorf("%w: %s (%w)", c.class, c.reason, code)
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", mounter.ErrNotFound, err)
	}
	return err
}
