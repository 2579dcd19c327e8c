package existing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Logs is provider.Provider's: the logs of the containers, the pods as they are, and events. The
// logs of an earlier run of a restarted container are included. The logs of the components are out
// of reach. A part that cannot be read is an error in the end, beside the rest.
func (c *Cluster) Logs(ctx context.Context, dir string) error {
	spaces := c.options.Namespaces
	if len(spaces) == 0 {
		list, err := c.client.CoreV1().Namespaces().List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			spaces = append(spaces, s.Name)
		}
	}
	var errs []error
	for _, s := range spaces {
		of := filepath.Join(dir, s)
		if err := os.MkdirAll(of, 0o755); err != nil {
			return err
		}
		errs = append(errs, c.events(ctx, s, filepath.Join(of, "events.txt")), c.pods(ctx, s, of))
	}
	return errors.Join(errs...)
}

// events writes a namespace's events, the oldest first.
func (c *Cluster) events(ctx context.Context, namespace, path string) error {
	list, err := c.client.CoreV1().Events(namespace).List(ctx, meta.ListOptions{})
	if err != nil {
		return fmt.Errorf("events of %s: %w", namespace, err)
	}
	slices.SortStableFunc(list.Items, func(a, b core.Event) int { return at(a).Compare(at(b).Time) })
	var b bytes.Buffer
	for _, e := range list.Items {
		fmt.Fprintf(&b, "%s %s %s %s/%s: %s (x%d)\n", at(e).UTC().Format("2006-01-02T15:04:05Z"), e.Type, e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message, max(e.Count, 1))
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// at is when an event was seen last. The field depends on the library that has recorded
// it.
func at(e core.Event) meta.Time {
	switch {
	case e.Series != nil:
		return meta.Time{Time: e.Series.LastObservedTime.Time}
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return meta.Time{Time: e.EventTime.Time}
	}
	return e.CreationTimestamp
}

// pods writes the pods of a namespace, each into a directory of its own.
func (c *Cluster) pods(ctx context.Context, namespace, dir string) error {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, meta.ListOptions{})
	if err != nil {
		return fmt.Errorf("pods of %s: %w", namespace, err)
	}
	var errs []error
	for _, p := range list.Items {
		of := filepath.Join(dir, p.Name)
		if err := os.MkdirAll(of, 0o755); err != nil {
			return err
		}
		p.ManagedFields = nil
		text, err := yaml.Marshal(p)
		if err != nil {
			return err
		}
		errs = append(errs, os.WriteFile(filepath.Join(of, "pod.yaml"), text, 0o644))
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
			p.Status.EphemeralContainerStatuses) {
			errs = append(errs, c.container(ctx, p, s, of))
		}
	}
	return errors.Join(errs...)
}

// container writes a container's logs. A container that has not run yet has no logs.
func (c *Cluster) container(ctx context.Context, p core.Pod, s core.ContainerStatus, dir string) error {
	var errs []error
	if s.State.Running != nil || s.State.Terminated != nil {
		errs = append(errs, c.log(ctx, p, &core.PodLogOptions{Container: s.Name, Timestamps: true},
			filepath.Join(dir, s.Name+".log")))
	}
	if s.LastTerminationState.Terminated != nil {
		errs = append(errs, c.log(ctx, p, &core.PodLogOptions{Container: s.Name, Timestamps: true, Previous: true},
			filepath.Join(dir, s.Name+".previous.log")))
	}
	return errors.Join(errs...)
}

func (c *Cluster) log(ctx context.Context, p core.Pod, o *core.PodLogOptions, path string) error {
	in, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, o).Stream(ctx)
	if err != nil {
		return fmt.Errorf("log of %s in %s/%s: %w", o.Container, p.Namespace, p.Name, err)
	}
	defer in.Close()
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
