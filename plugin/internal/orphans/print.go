package orphans

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/causeway-csi/causeway/plugin/internal/safe"
)

// Text writes the report as text: a line for each orphan, then the counts. Names come from nodes.
func (r Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Orphans) > 0 {
		fmt.Fprintln(w, "WHAT\tID\tBYTES\tNODE\tCREATED\tSOURCE\tGROUP")
	}
	for _, o := range r.Orphans {
		created := ""
		if !o.Created.IsZero() {
			created = o.Created.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", o.What, safe.Cell(o.ID), o.Size, safe.Cell(strings.Join(
			o.Nodes, ",")),
			safe.Cell(created), safe.Cell(o.Source), safe.Cell(o.Group))
	}
	for _, c := range []struct {
		what string
		Count
	}{{"volumes", r.Volumes}, {"snapshots", r.Snapshots}, {"snapshots in groups", r.Members}} {
		if c.NotJudged != "" {
			fmt.Fprintf(w, "%s: %d held, %d named, the others NOT JUDGED: %s\n", c.what, c.Held, c.Named, c.NotJudged)
			continue
		}
		fmt.Fprintf(w, "%s: %d held, %d named, %d orphans\n", c.what, c.Held, c.Named, c.Orphans)
	}
	if len(r.Pending) > 0 && len(r.Orphans) > 0 {
		some := strings.Join(r.Pending[:min(len(r.Pending), 10)], ", ")
		if more := len(r.Pending) - 10; more > 0 {
			some += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(w, "%d claims are pending, and the driver may be creating their volumes: run the command again "+
			"later: %s\n", len(r.Pending), safe.Text(some))
	}
	for _, left := range r.Reservations {
		remedy := "delete it by hand"
		if left.Policy != string(corev1.PersistentVolumeReclaimRetain) {
			remedy = "a sidecar deletes the volume or snapshot as soon as it can; --delete first sets the policy " +
				"to Retain"
		}
		fmt.Fprintf(w, "%s is left of an interrupted delete, and names its orphan. Its policy is %s: %s\n",
			safe.Text(left.Kind+"/"+left.Name), safe.Text(left.Policy), remedy)
	}
	return w.Flush()
}
