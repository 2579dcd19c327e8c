// Package freeze freezes, thaws and trims the filesystems in images.
package freeze
