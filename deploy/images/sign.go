package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// signer signs the programs of Windows images by Authenticode. Its zero value signs nothing.
type signer struct {
	cert string // PEM: the certificate, and those between it and a root
	key  string // PEM: the private key, without a password
	// timestamp is the URL of an RFC 3161 authority; "" for none. Without a timestamp a signature
	// is valid as long as its certificate.
	timestamp string
}

// flags defines the flags of a signer.
func (s *signer) flags(set *flag.FlagSet) {
	set.StringVar(&s.cert, "sign-cert", "",
		"file with the certificate by which the Windows programs are signed, and its intermediate ones, as PEM; "+
			"needs the program osslsigncode")
	set.StringVar(&s.key, "sign-key", "", "file with the private key of --sign-cert, as PEM, without a password")
	set.StringVar(&s.timestamp, "sign-timestamp", "", "`URL` of the authority for timestamps (RFC 3161) of signatures")
}

// check returns an error if the flags do not fit each other or the platforms.
func (s *signer) check(platforms []string) error {
	if s.cert == "" && s.key == "" && s.timestamp == "" {
		return nil
	}
	if s.cert == "" || s.key == "" {
		return errors.New("--sign-cert and --sign-key belong together, and --sign-timestamp needs both")
	}
	if !slices.ContainsFunc(platforms, func(p string) bool { return strings.HasPrefix(p, "windows/") }) {
		return errors.New("--sign-cert: no platform of Windows, so nothing would be signed")
	}
	if _, err := exec.LookPath("osslsigncode"); err != nil {
		return fmt.Errorf("--sign-cert: %w: install Debian's package osslsigncode", err)
	}
	for name, path := range map[string]*string{"--sign-cert": &s.cert, "--sign-key": &s.key} {
		if _, err := os.Stat(*path); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	return nil
}

// sign returns a program with a signature, or the program itself if s signs nothing. The program
// must be in the format of Windows.
func (s *signer) sign(ctx context.Context, program []byte) ([]byte, error) {
	if s.cert == "" {
		return program, nil
	}
	dir, err := os.MkdirTemp("", "causeway-sign-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "in.exe"), filepath.Join(dir, "out.exe")
	if err := os.WriteFile(in, program, 0o600); err != nil {
		return nil, err
	}
	args := []string{"sign", "-certs", s.cert, "-key", s.key, "-h", "sha256", "-n", "Causeway", "-i", source}
	if s.timestamp != "" {
		args = append(args, "-ts", s.timestamp)
	}
	// osslsigncode prints its errors to both.
	if printed, err := output(ctx, dir, nil, "osslsigncode", append(args, "-in", in, "-out", out)...); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(printed))
	}
	return os.ReadFile(out)
}
