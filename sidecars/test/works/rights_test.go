package works

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// grant gives the rights that csi-sidecars prints with these arguments, and no others: a missing
// right fails tests.
func grant(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, world.binary, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%q: %w: %s", args, err, said.String())
	}
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		one, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(one, nil, nil)
		if err != nil {
			return fmt.Errorf("%q prints what no API server takes: %w", args, err)
		}
		if err := createRBAC(ctx, o); err != nil {
			return err
		}
	}
}

func createRBAC(ctx context.Context, o runtime.Object) (err error) {
	rbac := world.Kube.RbacV1()
	switch o := o.(type) {
	case *rbacv1.ClusterRole:
		_, err = rbac.ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = rbac.ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = rbac.Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = rbac.RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("%T is no right", o)
	}
	return err
}
