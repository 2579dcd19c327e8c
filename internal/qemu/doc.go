// Package qemu has the parts of guests of QEMU: a kernel of Debian's, the format of the first
// filesystem, and programs of this machine with their libraries. test/vm runs tests in such guests,
// and the clusters of test/cluster have such guests as nodes.
package qemu

// Emulator is the program that runs guests, of Debian's package qemu-system-x86.
const Emulator = "qemu-system-x86_64"

// Machine returns the emulator's options of all guests: an emulated processor, which needs no KVM,
// and no device but a random number generator.
func Machine() []string {
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35", "-smp", "2", "-nodefaults",
		"-no-user-config", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci"}
}

// Append is the kernel's command line of all guests: messages on the first serial port, and a guest
// that ends after a panic.
const Append = "console=ttyS0 quiet panic=-1 mitigations=off"
