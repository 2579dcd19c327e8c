package mounter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestParseShare(t *testing.T) {
	long := strings.Repeat("a", 255)
	for source, want := range map[string]ShareSource{
		"//server/share":                       {"server", 0, "share", ""},
		"//Server.Example.COM:4450/Share/a/b":  {"server.example.com", 4450, "Share", "a/b"},
		"//10.0.2.2/share/sub dir/a,b":         {"10.0.2.2", 0, "share", "sub dir/a,b"},
		"//[FE80::1]:445/share":                {"fe80::1", 445, "share", ""},
		"//[::1]/share/d":                      {"::1", 0, "share", "d"},
		"//server/share$/" + long:              {"server", 0, "share$", long},
		"//server/share/.hidden/…/pvc-1=x;y'z": {"server", 0, "share", ".hidden/…/pvc-1=x;y'z"},
	} {
		got, err := ParseShare(source)
		if err != nil || got != want {
			t.Errorf("%.60s: %+v, %v, want %+v", source, got, err, want)
		}
		if again, err := ParseShare(got.String()); err != nil || again != got {
			t.Errorf("%.60s: its text %s gives %+v, %v", source, got, again, err)
		}
	}
	for _, source := range []string{
		"", "//", "/server/share", "//server", "//server/", "//server/share/", "//server//dir", "//server/share//dir",
		"//server/share/..", "//server/share/a/../b", "//server/share/.", "//server/../share", "//server/share/a\\b",
		"//server/share/a\x00b", "//server/share/a\nb", "//server/share/a:b", "//server/share/a*", "//server/share/a\"b",
		"//server/share/a.", "//server/share/a ", "//server/share/\xff", "//server/share/" + long + "a",
		"//server:0/share", "//server:65536/share", "//server:x/share", "//server:/share", "//:445/share", "//-a/share",
		"//a b/share", "//server,ip=10.0.0.1/share", "//[::1/share", "//[10.0.0.1]/share", "//[fe80::1%eth0]/share",
		"//" + long + "/share", "//server/" + strings.Repeat("s", 81), "//server/share" + strings.Repeat("/0123456",
			200),
		"smb://server/share", `\\server\share`,
	} {
		if got, err := ParseShare(source); !errors.Is(err, ErrPath) {
			t.Errorf("%.60q: %+v, %v, want ErrPath", source, got, err)
		}
	}
	if _, err := ParseShare("//server/share/dir/"); err == nil || !strings.Contains(err.Error(), "remove the slash") {
		t.Errorf("a slash at the end: %v", err)
	}
}

func FuzzParseShare(f *testing.F) {
	f.Add("//server:445/share/dir/sub")
	f.Add("//[::1]/share")
	f.Fuzz(func(t *testing.T, source string) {
		s, err := ParseShare(source)
		if err != nil {
			return
		}
		if again, err := ParseShare(s.String()); err != nil || again != s {
			t.Errorf("%q: %+v, its text %q: %+v, %v", source, s, s.String(), again, err)
		}
		for _, e := range append(strings.Split(s.Path, "/"), s.Share) {
			if e == ".." || e == "." || strings.ContainsAny(e, "\\\x00\n") {
				t.Errorf("%q has the element %q", source, e)
			}
		}
	})
}

func TestOptionsOfAShare(t *testing.T) {
	good := []string{"uid=0", "gid=4242", "gid=3999999999", "file_mode=0660", "dir_mode=02770", "dir_mode=770",
		"actimeo=30",
		"closetimeo=1", "cache=none", "rsize=65536", "vers=3.1.1", "sec=krb5", "cruid=1000", "forcegid", "seal", "nobrl",
		"mfsymlinks", "context=system_u:object_r:container_file_t:s0:c1,c2", `context="system_u:object_r:container_file_t:s0:c1,c2"`, "ro",
		"noexec", "relatime"}
	if err := CheckOptions(Share, "", good); err != nil {
		t.Error(err)
	}
	for _, o := range good {
		if !IsOption(o) {
			t.Errorf("%s counts as a secret", o)
		}
	}
	for _, o := range []string{
		"gid", "gid=", "gid=-1", "gid=4294967295", "gid=0x10", "gid=1,ip=10.0.0.1", "file_mode=9", "file_mode=", "seal=1",
		"cache=loose", "vers=1.0", "vers=2.1", "sec=none", "sec=krb5,uid=0", "actimeo=1s", "context=a", "context=a:b:c\n", "context=a:b:c:d:e:f",
		`context="a:b:c`, `context=a:b:c"`, `context=""a:b:c""`, `context="a:b:c",ip="1"`, `context=""`, `context="a:b:c\"`,
		"password=x", "password2=x", "username=bob", "user=bob", "pass=x", "credentials=/etc/shadow", "domain=w", "ip=10.0.0.1",
		"addr=10.0.0.1", "port=1", "unc=//a/b", "source=//a/b", "prefixpath=/", "gid=1\x00", "GID=1", "", "=", "multiuser",
		"servern=x", "netbiosname=x", "modefromsid", "idsfromsid", "fsc", "sfu", "unix", "posix", "snapshot=1", "dev",
	} {
		if err := CheckOptions(Share, "", []string{"ro", o}); !errors.Is(err, ErrOption) {
			t.Errorf("%q: %v, want ErrOption", o, err)
		} else if _, value, _ := strings.Cut(o, "="); len(value) > 3 && strings.Contains(err.Error(), value) {
			t.Errorf("the error shows the option %q", o)
		}
	}
	if err := CheckOptions(Directory, "", []string{"gid=1"}); !errors.Is(err, ErrOption) {
		t.Errorf("gid of a directory: %v", err)
	}
}

// No form of a Mount shows its credentials.
func TestCredentialsAreHidden(t *testing.T) {
	c := Credentials{Username: "secret-user", Domain: "secret-domain", Password: "secret-password"}
	m := Mount{Kind: Share, Source: "//server/share", Credentials: c}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("mount", "mount", m, "credentials", c, "pointer", &c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("mount", "mount", m, "credentials", c, "pointer", &c)
	data, err := json.Marshal(map[string]any{"m": m, "p": &m, "c": c})
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{log.String(), string(data), fmt.Sprint(m), fmt.Errorf("mount %v: %w", m, ErrServer).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, m), fmt.Sprintf(verb, c), fmt.Sprintf(verb, &c), fmt.Sprintf(verb,
			[]any{c}))
	}
	for _, text := range texts {
		for _, form := range []string{"secret-", fmt.Sprintf("%x", "secret-"), "[115 101"} {
			if strings.Contains(text, form) {
				t.Errorf("shown: %s", text)
			}
		}
		if !strings.Contains(text, hidden) {
			t.Errorf("no %s in %s", hidden, text)
		}
	}
}
