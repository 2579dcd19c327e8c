// Package tool runs programs and helper processes on images and devices, with a deadline for each.
// An image with a program that was given up, and that has not ended, counts as stalled.
package tool
