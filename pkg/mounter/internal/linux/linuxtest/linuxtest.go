// Package linuxtest has the parts of a Host of Linux for the tests of its packages. A test package
// calls Main in its TestMain.
package linuxtest
