// Package smbtest runs a private SMB server, Samba's smbd, as a child process of a test. A test can
// make the server silent, kill it, start it again and change its password, also from a guest of
// test/vm, which reaches the server and its control over the network.
package smbtest
