//go:build winetest

package winetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// UnixPath returns the path of a file outside of Wine, also of a file that does not exist yet. A
// path that is on no drive, such as a share, is below a directory that does not exist.
func UnixPath(path string) (string, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return "", err
	}
	// Only Wine has this function, which resolves neither the drive nor a link at the last element.
	address, _, _ := syscall.NewLazyDLL("kernel32.dll").NewProc("wine_get_unix_file_name").
		Call(uintptr(unsafe.Pointer(name)))
	if address != 0 { // the few bytes are never freed
		return text(*(**byte)(unsafe.Pointer(&address))), nil
	}
	if dir := filepath.Dir(path); dir != path { // the directory of the file does not exist
		parent, err := UnixPath(dir)
		return parent + "/" + filepath.Base(path), err
	}
	return "/nonexistent/" + strings.Trim(strings.ReplaceAll(path, `\`, "/"), "/"), nil
}

// text returns a string of C.
func text(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// runLimit is the time after which a program of the machine counts as failed.
const runLimit = time.Minute

var runs atomic.Int64

// Run runs a program of the machine outside of Wine, and reports whether its exit code is 0. dir is
// a directory for a file with the exit code: Wine gives no handle on the program, and no way to
// wait for its end.
func Run(dir string, args ...string) (ok bool, err error) {
	marker := filepath.Join(dir, fmt.Sprintf("exit-%d-%d", os.Getpid(), runs.Add(1)))
	unixMarker, err := UnixPath(marker)
	if err != nil {
		return false, err
	}
	// The file appears with its content.
	const script = `"$@" </dev/null >/dev/null 2>&1; echo $? >"$0.new"; mv "$0.new" "$0"`
	if err := start(`Z:\bin\sh`, append([]string{"sh", "-c", script, unixMarker}, args...)); err != nil {
		return false, err
	}
	for deadline := time.Now().Add(runLimit); ; time.Sleep(time.Millisecond) {
		code, err := os.ReadFile(marker)
		switch {
		case err == nil:
			return strings.TrimSpace(string(code)) == "0", os.Remove(marker)
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.Errno(32)): // a sharing violation
			return false, err
		case time.Now().After(deadline):
			return false, fmt.Errorf("%q did not end in %s", args, runLimit)
		}
	}
}

// start starts a program of the machine. It does not use os.StartProcess, which closes the handles
// of the new process: Wine 8 leaves arbitrary numbers there, at times the handle of an open file.
func start(program string, args []string) error {
	for i := range args {
		args[i] = syscall.EscapeArg(args[i])
	}
	name, err := syscall.UTF16PtrFromString(program)
	if err != nil {
		return err
	}
	line, err := syscall.UTF16PtrFromString(strings.Join(args, " "))
	if err != nil {
		return err
	}
	var info syscall.ProcessInformation
	startup := syscall.StartupInfo{Cb: uint32(unsafe.Sizeof(syscall.StartupInfo{}))}
	return syscall.CreateProcess(name, line, nil, nil, false, 0, nil, nil, &startup, &info)
}
