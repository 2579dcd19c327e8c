package main

import (
	"archive/tar"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// needsSigner skips a test without osslsigncode, which make test-images installs.
func needsSigner(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("osslsigncode"); err != nil {
		if os.Getenv("CAUSEWAY_MUST_MOUNT") != "" {
			t.Fatal(err)
		}
		t.Skip("no osslsigncode: hack/packages images installs it")
	}
}

// testSigner returns a signer with a new certificate that signs itself.
func testSigner(t *testing.T) signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Causeway test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := signer{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	for path, block := range map[string]*pem.Block{s.cert: {Type: "CERTIFICATE", Bytes: cert},
		s.key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// smallProgram returns a program for Windows with the build information of a module.
func smallProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{"go.mod": "module " + module + "\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := output(t.Context(), dir, environment("windows/amd64"), "go", "build", "-o", "small.exe", "."); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(dir, "small.exe"))
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// verify runs osslsigncode verify on a program, with the only certificate that is trusted.
func verify(t *testing.T, program []byte, cert string) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program.exe")
	if err := os.WriteFile(path, program, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "osslsigncode", "verify", "-CAfile", cert, "-in", path).CombinedOutput()
	t.Logf("osslsigncode verify: %v\n%s", err, out)
	return err
}

// TestTheProgramsOfWindowsImagesAreSigned: the program in each archive has a signature of the
// certificate.
func TestTheProgramsOfWindowsImagesAreSigned(t *testing.T) {
	needsSigner(t)
	small, s, other := smallProgram(t), testSigner(t), testSigner(t)
	if verify(t, small, s.cert) == nil {
		t.Fatal("a program without a signature is verified")
	}
	m := maker{root: filepath.Join("..", ".."), out: t.TempDir(), signer: s, version: version{"v1", "abc"},
		made: map[string][]oci.Image{}}
	for _, p := range products {
		if !p.windows {
			continue
		}
		if err := m.addWindows(t.Context(), p, "windows/amd64", nil,
			func(product) ([]byte, error) { return small, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.write(); err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(m.out, "*.tar"))
	if err != nil || len(archives) != 2 {
		t.Fatalf("%v, %v", archives, err)
	}
	for _, a := range archives {
		image, err := tarball.ImageFromPath(a, nil)
		if err != nil {
			t.Fatal(err)
		}
		var program []byte
		each(t, image, func(h *tar.Header, content []byte) {
			if strings.HasSuffix(h.Name, ".exe") {
				program = content
			}
		})
		if err := verify(t, program, s.cert); err != nil {
			t.Errorf("%s: %v", a, err)
		}
		if verify(t, program, other.cert) == nil {
			t.Errorf("%s is verified by the certificate of another", a)
		}
		program[len(program)/2] ^= 1
		if verify(t, program, s.cert) == nil {
			t.Errorf("%s: a changed program is verified", a)
		}
	}
}

func TestSigningThatFailsMakesNoImage(t *testing.T) {
	needsSigner(t)
	m := maker{root: filepath.Join("..", ".."), out: t.TempDir(), signer: testSigner(t), version: version{"v1", "abc"},
		made: map[string][]oci.Image{}}
	err := m.addWindows(t.Context(), products[0], "windows/amd64", nil,
		func(product) ([]byte, error) { return []byte("no program"), nil })
	if err == nil || !strings.Contains(err.Error(), "sign driver.exe") || len(m.made) != 0 {
		t.Errorf("%v, and %d images", err, len(m.made))
	}
}

func TestFlagsOfSignatures(t *testing.T) {
	needsSigner(t)
	s := testSigner(t)
	cert, key := "--sign-cert="+s.cert, "--sign-key="+s.key
	both := []string{"linux/amd64", "windows/amd64"}
	for name, tc := range map[string]struct {
		args, platforms []string
		want            string // of an error
	}{
		"none":                          {nil, both[:1], ""},
		"both":                          {[]string{cert, key, "--sign-timestamp=http://tsa.example"}, both, ""},
		"a certificate without its key": {[]string{cert}, both, "belong together"},
		"a key without a certificate":   {[]string{key}, both, "belong together"},
		"a timestamp of nothing":        {[]string{"--sign-timestamp=http://tsa.example"}, both, "needs both"},
		"no program of Windows":         {[]string{cert, key}, both[:1], "nothing would be signed"},
		"a key that does not exist":     {[]string{cert, "--sign-key=/nowhere"}, both, "--sign-key: stat /nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			var got signer
			set := flag.NewFlagSet("", flag.ContinueOnError)
			got.flags(set)
			if err := set.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := got.check(tc.platforms)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
