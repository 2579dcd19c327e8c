package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// tokenLife is how long a service account's token is good for: longer than a test.
const tokenLife = 24 * time.Hour

// Config returns how to reach the API server as an administrator, who may do everything. It is the
// caller's to change.
func (p *Plane) Config() *rest.Config { return rest.CopyConfig(p.admin) }

// Kubeconfig returns the path of a file with the content of Config.
func (p *Plane) Kubeconfig() string { return filepath.Join(p.Dir, "admin.kubeconfig") }

// ConfigFor returns how to reach the API server as user, who is in groups and in
// system:authenticated.
func (p *Plane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	pair, err := p.CA.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	c := p.config()
	c.CertData, c.KeyData = pair.Cert, pair.Key
	return c, nil
}

// KubeconfigFor writes ConfigFor into a new file and returns its path.
func (p *Plane) KubeconfigFor(user string, groups ...string) (string, error) {
	c, err := p.ConfigFor(user, groups...)
	if err != nil {
		return "", err
	}
	return p.writeNewKubeconfig(c)
}

// WriteKubeconfig writes ConfigFor into the file at path, readable by this user alone.
func (p *Plane) WriteKubeconfig(path, user string, groups ...string) error {
	c, err := p.ConfigFor(user, groups...)
	if err != nil {
		return err
	}
	return writeKubeconfig(path, c)
}

// ServiceAccountConfig returns how to reach the API server as the service account of that name,
// with a token of a day. Errors: the API server's, such as that there is no such account.
func (p *Plane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(p.admin)
	if err != nil {
		return nil, err
	}
	seconds := int64(tokenLife.Seconds())
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, meta.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	c := p.config()
	c.BearerToken = token.Status.Token
	return c, nil
}

// ServiceAccountKubeconfig writes ServiceAccountConfig into a new file and returns its path.
func (p *Plane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	c, err := p.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	return p.writeNewKubeconfig(c)
}

// APIServerMetrics returns the API server's metrics, as Prometheus reads them.
func (p *Plane) APIServerMetrics(ctx context.Context) ([]byte, error) {
	client, err := rest.HTTPClientFor(p.admin)
	if err != nil {
		return nil, err
	}
	return get(ctx, client, p.admin.Host+"/metrics")
}

// config returns the address of the API server without credentials. The limits are too high to
// disturb a test.
func (p *Plane) config() *rest.Config {
	return &rest.Config{
		Host:            url(p.host, p.server.Port),
		TLSClientConfig: rest.TLSClientConfig{CAData: p.CA.Cert},
		QPS:             1000,
		Burst:           2000,
	}
}

// get returns the body of an answer 200; any other answer is an error.
func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %s", url, response.Status, body)
	}
	return body, nil
}

// writeNewKubeconfig writes a kubeconfig into a new file, and returns its path.
func (p *Plane) writeNewKubeconfig(c *rest.Config) (string, error) {
	f, err := os.CreateTemp(p.Dir, "*.kubeconfig")
	if err != nil {
		return "", err
	}
	return f.Name(), errors.Join(f.Close(), writeKubeconfig(f.Name(), c))
}

// writeKubeconfig writes a file that has everything that c has, for this user alone.
func writeKubeconfig(path string, c *rest.Config) error {
	const name = "causeway"
	k := api.NewConfig()
	k.Clusters[name] = &api.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	k.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Token: c.BearerToken}
	k.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	k.CurrentContext = name
	return clientcmd.WriteToFile(*k, path)
}
