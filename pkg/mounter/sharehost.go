package mounter

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// shareHost has the calls of a machine whose shares are mapped, such as Windows. A mapping gives
// the whole machine a session with a share. Any call may block for minutes, and may panic. Only
// unmapShare is called beside other calls. A root is that of rootOf.
type shareHost interface {
	// mapping returns the mapping of a root. Errors: fs.ErrNotExist.
	mapping(root string) (shareMapping, error)
	// mapShare maps a root. The error is a hint: the mapping may be there in spite of it, and may be
	// missing without it.
	mapShare(root string, c Credentials, privacy bool) error
	// unmapShare removes the mapping of a root. Errors: fs.ErrNotExist.
	unmapShare(root string) error
	// probe follows links, asks the server for the directory at path, and opens nothing in it.
	// Errors: fs.ErrNotExist; a windowsCode.
	probe(path string) error
	// shareUsage is linkHost.usage for a directory of a share.
	shareUsage(path string) (Usage, error)
}

// shareMapping is a mapping of a machine.
type shareMapping struct {
	status  mappingStatus
	user    string // as userOf; "": unknown
	privacy bool   // it demands encryption; false: perhaps not
}

// mappingStatus is the Status of an MSFT_SmbGlobalMapping. It decides nothing: Disconnected is
// normal for an idle mapping, and stale after a reboot.
type mappingStatus int32

func (s mappingStatus) String() string {
	names := []string{"OK", "Paused", "Disconnected", "NetworkError", "Connecting", "Reconnecting", "Unavailable"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("status %d", int32(s))
	}
	return names[s]
}

// windowsCode is an error code of Windows, on any system.
// https://learn.microsoft.com/windows/win32/debug/system-error-codes
type windowsCode uint32

func (c windowsCode) Error() string { return fmt.Sprintf("Windows error %d", uint32(c)) }

// Is reports whether a missing file or directory is the reason.
func (c windowsCode) Is(target error) bool {
	return target == fs.ErrNotExist && (c == codeFileNotFound || c == codePathNotFound)
}

// codeOfResult returns the code of an HRESULT of Windows (0x8007….), or result itself.
func codeOfResult(result uint32) windowsCode {
	if result>>16 == 0x8007 {
		result &= 0xffff
	}
	return windowsCode(result)
}

const (
	codeFileNotFound      windowsCode = 2
	codePathNotFound      windowsCode = 3
	codeAccessDenied      windowsCode = 5
	codeSharingViolation  windowsCode = 32
	codeBadNetPath        windowsCode = 53
	codeNetNameDeleted    windowsCode = 64
	codeBadNetName        windowsCode = 67
	codeSessionConflict   windowsCode = 1219
	codeLogonFailure      windowsCode = 1326
	codeSymlinkClassIsOff windowsCode = 1463
)

// codeClasses are the errors of this package for codes of Windows, with their reasons.
var codeClasses = []struct {
	class  error
	reason string
	codes  []windowsCode
}{
	{ErrServer, "the server or the network does not answer, or ended the session",
		[]windowsCode{51, codeBadNetPath, 54, 55, 59, codeNetNameDeleted, 121, 1214, 1222, 1225, 1231, 1232, 1236}},
	{ErrNotFound, "the server has no such share", []windowsCode{codeBadNetName}},
	{ErrNotFound, "no such directory", []windowsCode{codeFileNotFound, codePathNotFound}},
	{ErrAccess, "the server refuses this user, or this password",
		[]windowsCode{codeAccessDenied, 65, 86, codeLogonFailure, 1327, 1328, 1330, 1331, 1907, 1909}},
	{ErrBusy, "a file of the share is in use", []windowsCode{codeSharingViolation}},
	{ErrBusy, "a session with this server exists, of another user: Windows permits one user for a server. " +
		"Use the same user for all shares of the server, or end the other sessions: Get-SmbGlobalMapping and " +
		"Get-SmbConnection show them", []windowsCode{codeSessionConflict}},
	{errors.ErrUnsupported, "a policy of the node forbids links from local to remote paths: allow them with " +
		"fsutil behavior set SymlinkEvaluation L2R:1", []windowsCode{codeSymlinkClassIsOff}},
}

// classify gives an error of a shareHost its class, with the reason.
func classify(err error) error {
	var code windowsCode
	if errors.As(err, &code) {
		for _, c := range codeClasses {
			if slices.Contains(c.codes, code) {
				return fmt.Errorf("%w: %s (%w)", c.class, c.reason, code)
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
