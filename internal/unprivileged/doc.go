// Package unprivileged runs a test as a user who is not root: root opens every file, regardless of
// its mode.
package unprivileged
