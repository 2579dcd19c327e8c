// Package cifs mounts shares of SMB servers.
package cifs
