package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/orphans"
	"github.com/causeway-csi/causeway/plugin/internal/status"
)

func statusCommand() command {
	return command{
		usage: "Show versions, nodes, capacity, volumes, snapshots, leaders and certificates.\n\n  kubectl " +
			"causeway status\n",
		flags: func(*pflag.FlagSet) {},
		run: func(ctx context.Context, s session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			v, err := cluster.Gather(ctx, s.client, s.selection)
			if err != nil {
				return err
			}
			return s.print(status.Of(v))
		},
	}
}

// report prints the report of doctor, and returns its exit code.
func (s session) report(r doctor.Report) error {
	if err := s.print(r); err != nil {
		return err
	}
	if code := r.Code(); code != codeOK {
		return errCode(code)
	}
	return nil
}

// orphansFlags are the flags of orphans.
type orphansFlags struct {
	orphans.Options
	program string
	delete  bool
	yes     bool
	pending bool // delete despite pending claims
	wait    time.Duration
}

func orphansCommand() command {
	f := &orphansFlags{}
	return command{
		usage: "List volumes and snapshots that no object of the cluster names.\n\n  kubectl causeway orphans\n" +
			"  kubectl causeway orphans --delete [ID…]\n\n" +
			"A volume of a deleted PersistentVolume with the policy Retain is listed, too.\n" +
			"Exit codes: 0 none; 1 an error, or no result; 2 invalid command line; 3 orphans.\n",
		flags: func(fs *pflag.FlagSet) {
			fs.DurationVar(&f.Settle, "settle", 30*time.Second, "time between the list of the driver and those of "+
				"objects")
			fs.BoolVar(&f.NoVolumes, "expect-no-volumes", false, "judge volumes even if the cluster has no "+
				"PersistentVolume")
			fs.BoolVar(&f.NoSnapshots, "expect-no-snapshots", false, "judge snapshots even if the cluster has no "+
				"VolumeSnapshotContent")
			fs.BoolVar(&f.NoGroups, "expect-no-groups", false, "judge members of group snapshots even if the "+
				"cluster has no VolumeGroupSnapshotContent")
			fs.BoolVar(&f.NoneNamed, "expect-none-named", false, "judge volumes, snapshots and members of "+
				"groups also if no object names any of them")
			fs.StringVar(&f.program, "program", "/driver", "path of the driver in its image")
			fs.BoolVar(&f.delete, "delete", false, "delete the orphans, or those with the given IDs, after a "+
				"confirmation")
			fs.BoolVar(&f.yes, "yes", false, "with --delete: do not ask")
			fs.BoolVar(&f.pending, "despite-pending-claims", false, "with --delete: delete although claims of the "+
				"driver are pending; the volumes with the names of these claims stay")
			fs.DurationVar(&f.wait, "wait", 2*time.Minute, "with --delete: time for each orphan")
		},
		run: func(ctx context.Context, s session, args []string) error { return s.orphans(ctx, f, args) },
	}
}

func (s session) orphans(ctx context.Context, f *orphansFlags, ids []string) error {
	switch {
	case f.Settle < 0 || f.wait <= 0:
		return fmt.Errorf("%w: --settle must not be negative, and --wait must be positive", errUsage)
	case !f.delete && (len(ids) > 0 || f.yes || f.pending):
		return fmt.Errorf("%w: IDs, --yes and --despite-pending-claims need --delete", errUsage)
	case f.delete && s.output == "json":
		return fmt.Errorf("%w: --delete has no --output=json", errUsage)
	}
	found, err := cluster.Find(ctx, s.client, s.selection)
	if err != nil {
		return err
	}
	if len(found) > 1 {
		var names []string
		for _, d := range found {
			names = append(names, d.Name+" in "+d.Namespace)
		}
		return fmt.Errorf("%w: choose one of the drivers with --driver or --namespace: %s", errUsage, strings.Join(
			names, ", "))
	}
	search := orphans.Search{Client: s.client, Driver: found[0], List: orphans.Exec(s.client, found[0], f.program),
		Options: f.Options}
	if f.Settle > 0 {
		fmt.Fprintf(s.err, "comparing with the objects of the cluster %s after the list of the driver\n", f.Settle)
	}
	report, err := search.Find(ctx)
	if err != nil {
		return err
	}
	if err := s.print(report); err != nil {
		return err
	}
	if f.delete {
		return s.deleteOrphans(ctx, &orphans.Deletion{Search: search, Report: report, Wait: f.wait, Poll: time.Second,
			Log: s.err, DespitePending: f.pending}, ids, f.yes)
	}
	return orphansLeft(report, 0)
}

// orphansLeft returns the exit code of a report after a number of its orphans was deleted.
func orphansLeft(r orphans.Report, deleted int) error {
	switch {
	case len(r.Orphans) > deleted:
		return errCode(codeOrphans)
	case !r.Judged():
		return errCode(codeError)
	}
	return nil
}

// deleteOrphans deletes orphans of a report after a confirmation.
func (s session) deleteOrphans(ctx context.Context, d *orphans.Deletion, ids []string, yes bool) error {
	if err := d.Reset(ctx); err != nil {
		return fmt.Errorf("nothing was deleted by this run: %w", err)
	}
	all, members := orphans.Deletable(d.Report.Orphans)
	if members > 0 {
		fmt.Fprintf(s.err, "%d snapshots are members of groups, which are deleted by hand: docs/how-to/orphans.md\n",
			members)
	}
	if len(ids) > 0 {
		var some []orphans.Orphan
		for _, id := range ids {
			i := slices.IndexFunc(all, func(o orphans.Orphan) bool { return o.ID == id })
			if i < 0 {
				return fmt.Errorf("nothing was deleted: %s is not in the report, or is a member of a group "+
					"snapshot", id)
			}
			some = append(some, all[i])
		}
		all = some
	}
	if len(all) == 0 {
		return orphansLeft(d.Report, 0)
	}
	if err := d.Check(); err != nil {
		return fmt.Errorf("nothing was deleted: %w", err)
	}
	if !yes {
		if err := s.confirm(len(all)); err != nil {
			return err
		}
	}
	failed := 0
	for _, o := range all {
		if err := d.Delete(ctx, o); err != nil {
			failed++
			result := "was not deleted"
			if errors.Is(err, orphans.ErrUnknown) {
				result = "may be deleted"
			}
			fmt.Fprintf(s.err, "%s %s %s: %s\n", o.What, o.ID, result, lines(err))
			continue
		}
		fmt.Fprintf(s.out, "%s %s deleted\n", o.What, o.ID)
	}
	if failed > 0 {
		return fmt.Errorf("the delete of %d of %d orphans failed", failed, len(all))
	}
	return orphansLeft(d.Report, len(all))
}

// confirm asks for the number of orphans.
func (s session) confirm(n int) error {
	fmt.Fprintf(s.err, "Their data will be lost. To delete %d orphans, type %d: ", n, n)
	line, err := bufio.NewReader(s.in).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != strconv.Itoa(n) {
		return errors.New("not confirmed: nothing was deleted")
	}
	return nil
}
