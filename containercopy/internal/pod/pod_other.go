//go:build !linux

package pod
