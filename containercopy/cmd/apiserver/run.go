package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/apiserver"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/internal/peertls"
)

// flags are the settings of the server.
type flags struct {
	generic   *genericoptions.RecommendedOptions
	namespace string // of the agents
	agents    apiserver.Agents
	tlsDir    string
	deny      string
	drain     time.Duration
}

// delay is the time between the signal to end and the end of new copies.
const delay = 5 * time.Second

// newFlags returns the defaults. The server has no storage, and its requests have no priorities:
// its streams are exempt, and the agents limit them.
func newFlags() *flags {
	o := genericoptions.NewRecommendedOptions("", apiserver.Codecs.LegacyCodec(options.Version))
	o.Etcd = nil
	o.EgressSelector, o.Traces = nil, nil
	o.Features.EnablePriorityAndFairness = false
	o.SecureServing.BindPort = 6443
	return &flags{generic: o}
}

func (f *flags) add(fs *pflag.FlagSet) {
	f.generic.SecureServing.AddFlags(fs)
	f.generic.Authentication.AddFlags(fs)
	f.generic.Authorization.AddFlags(fs)
	f.generic.Audit.AddFlags(fs)
	f.generic.CoreAPI.AddFlags(fs)
	f.generic.Admission.AddFlags(fs)
	fs.StringVar(&f.namespace, "agent-namespace", "", "namespace of the agents; required")
	fs.StringVar(&f.agents.Selector, "agent-selector", "app.kubernetes.io/component=agent",
		"label selector of the agents")
	fs.IntVar(&f.agents.Port, "agent-port", 9840, "port of the calls of an agent")
	fs.StringVar(&f.agents.Name, "agent-name", "causeway-copy-agent", "DNS name in the certificates of the agents")
	fs.StringVar(&f.tlsDir, "agent-tls-dir", "/agent-tls", "directory of ca.crt, tls.crt and tls.key for the agents; "+
		"changed files are read again")
	fs.StringVar(&f.deny, "deny-label", options.Version.Group+"/deny", "label of pods and namespaces that denies "+
		"copies, unless its value is false; empty: none")
	fs.DurationVar(&f.drain, "drain-timeout", 25*time.Second, "time for the copies in progress when the server stops")
}

func (f *flags) check() error {
	errs := f.generic.SecureServing.Validate()
	errs = append(errs, f.generic.Authentication.Validate()...)
	errs = append(errs, f.generic.Authorization.Validate()...)
	errs = append(errs, f.generic.Audit.Validate()...)
	errs = append(errs, f.generic.CoreAPI.Validate()...)
	errs = append(errs, f.generic.Admission.Validate()...)
	if f.namespace == "" {
		errs = append(errs, errors.New("--agent-namespace is required"))
	}
	if f.agents.Selector == "" || f.agents.Name == "" {
		errs = append(errs, errors.New("--agent-selector and --agent-name must not be empty"))
	}
	if f.agents.Port < 1 || f.agents.Port > 65535 {
		errs = append(errs, fmt.Errorf("invalid --agent-port %d", f.agents.Port))
	}
	if f.drain < 0 {
		errs = append(errs, fmt.Errorf("invalid --drain-timeout %s", f.drain))
	}
	return utilerrors.NewAggregate(errs)
}

// run serves until ctx ends, and returns the exit code.
func run(ctx context.Context, args []string, log io.Writer) int {
	f := newFlags()
	fs := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	fs.SetOutput(log)
	f.add(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(log, "apiserver:", err)
		return 2
	case fs.NArg() > 0:
		fmt.Fprintf(log, "apiserver: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	if err := f.check(); err != nil {
		fmt.Fprintln(log, "apiserver:", err)
		return 2
	}
	if err := serve(ctx, f); err != nil {
		fmt.Fprintln(log, "apiserver:", err)
		return 1
	}
	return 0
}

// serve serves until ctx ends, and then lets the copies in progress end.
func serve(ctx context.Context, f *flags) error {
	identity, err := peertls.Open(f.tlsDir, func(err error) { klog.ErrorS(err, "certificates for the agents") })
	if err != nil {
		return err
	}
	f.agents.Identity = identity
	config, err := f.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config.ClientConfig)
	if err != nil {
		return err
	}
	f.agents.Pods = client.CoreV1().Pods(f.namespace)
	copies := &apiserver.Copies{Core: client.CoreV1(), Authorizer: config.Authorization.Authorizer, Agents: f.agents,
		Deny: f.deny}
	s, err := config.Complete().New("copy-apiserver", server.NewEmptyDelegate())
	if err != nil {
		return err
	}
	if err := apiserver.Install(s, copies.Storage()); err != nil {
		return err
	}
	if err := s.AddPostStartHook("informers", func(hook server.PostStartHookContext) error {
		config.SharedInformerFactory.Start(hook.Done())
		return nil
	}); err != nil {
		return err
	}
	if err := s.PrepareRun().RunWithContext(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.drain)
	defer cancel()
	if copies.Wait(limited) != nil {
		klog.InfoS("the copies in progress are interrupted", "after", f.drain)
	}
	return nil
}

// config returns the configuration of the generic server.
func (f *flags) config() (*server.RecommendedConfig, error) {
	if err := f.generic.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		return nil, fmt.Errorf("certificate of this server: %w", err)
	}
	config := server.NewRecommendedConfig(apiserver.Codecs)
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.0", "1.0", "1.0")
	apiserver.Configure(&config.Config)
	if err := f.generic.ApplyTo(config); err != nil {
		return nil, err
	}
	config.SecureServing.Listener = stream.WideListener(config.SecureServing.Listener)
	// A copy needs 3 requests at once. The agents limit the copies.
	config.ClientConfig.QPS, config.ClientConfig.Burst = 300, 600
	config.ShutdownDelayDuration = delay // kube-apiserver does not know at once that the endpoint is gone
	return config, nil
}
