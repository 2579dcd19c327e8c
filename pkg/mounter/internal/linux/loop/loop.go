// Package loop attaches files to loop devices, and finds the device of a file.
package loop
