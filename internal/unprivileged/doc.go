// Package unprivileged runs a test as a user who is not root: root opens every file, whatever its mode.
package unprivileged
