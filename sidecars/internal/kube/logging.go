package kube

import (
	"flag"

	"github.com/go-logr/logr"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Logging is the log of component-base with all of its formats and flags, as in upstream.
type Logging struct{ config *logsapi.LoggingConfiguration }

// Flags implements sidecar.Logging.
func (l *Logging) Flags(f *sidecar.Flags) {
	l.config = logsapi.NewLoggingConfiguration()
	f.Declare(func(s *flag.FlagSet) { logsapi.AddGoFlags(l.config, s) })
}

// Apply implements sidecar.Logging.
func (l *Logging) Apply() (logr.Logger, error) {
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		return logr.Logger{}, err
	}
	if err := logsapi.ValidateAndApply(l.config, gates); err != nil {
		return logr.Logger{}, err
	}
	return klog.Background(), nil
}
