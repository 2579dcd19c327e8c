//go:build !linux

package hang

// Main does nothing: there is no userfaultfd here.
func Main() {}
