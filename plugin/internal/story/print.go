package story

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/causeway-csi/causeway/plugin/internal/safe"
)

// Text writes the story as text. Names and messages come from nodes and tenants.
func (s *Story) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{{"claim", s.Claim}, {"PersistentVolume", s.Volume}, {"driver", s.Driver},
		{"volume handle", s.Handle}, {"node", s.Node}} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], safe.Cell(row[1]))
	}
	if s.Files != nil && s.Files.Path != "" {
		fmt.Fprintf(w, "path on the node\t%s\n", safe.Text(s.Files.Path))
	}
	fmt.Fprintln(w, "\nObjects:")
	for _, o := range s.Objects {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", o.Kind, safe.Text(o.Name), safe.Text(o.State))
	}
	fmt.Fprintln(w, "\nEvents:")
	for _, e := range s.Events {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", e.Time.Format(time.RFC3339), safe.Text(e.Object), safe.Text(e.Reason),
			safe.Text(strings.TrimSpace(e.Message)))
	}
	s.driverText(w)
	for _, n := range s.NotRead {
		fmt.Fprintf(w, "not read: %s\n", safe.Text(n))
	}
	return w.Flush()
}

// driverText writes the answers of the driver.
func (s *Story) driverText(w io.Writer) {
	if r := s.Record; r != nil {
		fmt.Fprintln(w, "\nController:")
		if r.Volume != nil {
			fmt.Fprintf(w, "  size\t%d bytes\n  source\t%s\n", r.Volume.Size, safe.Cell(r.Volume.Source))
		}
		if len(r.Health) == 0 && len(r.Errors) == 0 {
			fmt.Fprintln(w, "  health\tno condition")
		}
		for _, c := range r.Health {
			fmt.Fprintf(w, "  health\t%s, %s: %s\n", safe.Cell(c.Status), safe.Cell(c.Reason),
				safe.Text(c.Message))
		}
		for _, o := range r.Snapshots {
			fmt.Fprintf(w, "  snapshot\t%s\t%s\n", safe.Text(o.ID), o.Created.Format(time.RFC3339))
		}
		for _, e := range r.Errors {
			fmt.Fprintf(w, "  error\t%s\n", safe.Text(e))
		}
	}
	if f := s.Files; f != nil {
		fmt.Fprintf(w, "\nNode %s:\n", safe.Text(f.Node))
		if f.Record != nil {
			fmt.Fprintf(w, "  record\t%s\n", safe.Text(string(f.Record)))
		}
		for _, m := range f.Mounts {
			fmt.Fprintf(w, "  mount\t%s\n", safe.Text(m))
		}
		for _, e := range f.Errors {
			fmt.Fprintf(w, "  error\t%s\n", safe.Text(e))
		}
	}
	if len(s.Jobs) > 0 {
		fmt.Fprintln(w, "\nJobs of the whole node:")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Jobs)) {
		fmt.Fprintf(w, "  %s\t%g\n", safe.Text(name), s.Jobs[name])
	}
}
