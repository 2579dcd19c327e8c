//go:build !linux

// Command guest is the init of the guest of test/vm, which is Linux.
package main

func main() { panic("the guest is Linux") }
