package smb

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
)

// Flags are the fields of a Config that an operator sets.
type Flags struct {
	Shares     string
	Krb5Conf   string
	Krb5Caches string
}

// krb5Conf is the configuration of Kerberos on all systems that have one.
const krb5Conf = "/etc/krb5.conf"

// Declare declares the flags on set.
func (f *Flags) Declare(set *flag.FlagSet) {
	set.StringVar(&f.Shares, "smb-shares", "",
		"smb: YAML `file` with shares and the directories of their credentials, for calls without secrets "+
			"(--mode=controller and all, required). A file that changes is read again.")
	conf := krb5Conf
	if !filepath.IsAbs(conf) { // Windows: its nodes have no Kerberos tickets
		conf = ""
	}
	set.StringVar(&f.Krb5Conf, "smb-krb5-conf", conf,
		"smb: Kerberos configuration `file`, for credentials with a realm or a credential cache")
	set.StringVar(&f.Krb5Caches, "smb-krb5-caches", "",
		"smb: `directory` of the host's Kerberos credential caches, krb5cc_UID. Into it the node writes the "+
			"tickets of secrets for cifs.upcall. Default: the tickets are the host's.")
}

// Check returns an error for flags that are not valid. controller reports whether the process
// serves the controller services.
func (f *Flags) Check(controller bool) error {
	switch {
	case controller && f.Shares == "":
		return errors.New("--backend=smb needs --smb-shares: the file may have an empty list")
	case !controller && f.Shares != "":
		return fmt.Errorf("--smb-shares=%s has no effect on a node: calls bring their secrets", f.Shares)
	case f.Shares != "" && !filepath.IsAbs(f.Shares):
		return fmt.Errorf("invalid --smb-shares=%s: must be an absolute path", f.Shares)
	case f.Krb5Caches != "" && !filepath.IsAbs(f.Krb5Caches):
		return fmt.Errorf("invalid --smb-krb5-caches=%s: must be an absolute path", f.Krb5Caches)
	case !filepath.IsAbs(f.Krb5Conf) && (f.Krb5Conf != "" || filepath.IsAbs(krb5Conf)):
		return fmt.Errorf("invalid --smb-krb5-conf=%s: must be an absolute path", f.Krb5Conf)
	}
	return nil
}
