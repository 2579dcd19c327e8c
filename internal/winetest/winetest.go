// Package winetest makes tests for Windows run under Wine 8, if they are built with the tag
// winetest. Tests that remove files import it.
package winetest

import (
	"errors"
	"fmt"
	"os"
)

// Symlink makes a symbolic link for a test. Errors: errors.ErrUnsupported under Wine 8, where
// os.Symlink reports success and makes nothing.
func Symlink(text, path string) error {
	if err := os.Symlink(text, path); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("%w: os.Symlink has made no link here: %w", errors.ErrUnsupported, err)
	}
	return nil
}
