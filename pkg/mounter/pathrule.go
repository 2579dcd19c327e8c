// Package pathrule has the rules for paths below the kubelet directory.
package mounter

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Err is the error of a path that breaks a rule: outside of its directory, relative, unclean, or
// through a link.
var errPath = errors.New("invalid path")

// Limits of Linux.
const (
	maxPath = 4095 // PATH_MAX of Linux, less the terminating NUL
	maxName = 255  // NAME_MAX: bytes of an element of a path
)

// below returns path relative to dir. Both must be absolute and clean, and path strictly below dir.
func below(dir, path string) (string, error) {
	if len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return "", fmt.Errorf("%w: a path has at most %d bytes, none of them NUL", errPath, maxPath)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("%w: %.128q is not absolute and clean", errPath, path)
	}
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	if !ok || rel == "" {
		return "", fmt.Errorf("%w: %.128q is not below %q", errPath, path, dir)
	}
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if len(name) > maxName {
			return "", fmt.Errorf("%w: %.64q… has %d bytes, over %d", errPath, name, len(name), maxName)
		}
	}
	return rel, nil
}

// checkDir returns an error for a directory that no Mounter can work below.
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("%w: the kubelet directory %q is not absolute and clean", errPath, dir)
	}
	return nil
}
