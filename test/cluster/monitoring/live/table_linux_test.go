package live

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/doctortest"
)

// fault is a fault of the cluster, with its effects.
type fault struct {
	name string
	// rows are those of docs/how-to/troubleshooting.md that describe the fault: a heading, ": ",
	// and the first cell of a row of its table.
	rows []string
	// named are the findings of doctor. also are findings that may be there, too: consequences.
	named, also []want
	alerts      []string // end after the repair
	lasting     []string // alerts that fire, and end hours later only
	// cause causes the fault. Its calls of later repair it.
	cause func(*scene)
}

type (
	finding = doctortest.Finding
	report  = doctortest.Report
)

// want is a finding: its check, parts of the object, the cause and the remedy, and its page.
type want struct{ check, object, cause, remedy, page string }

// is returns a function that compares a finding with wanted findings.
func is(f finding) func(want) bool { return func(w want) bool { return w.is(f) } }

func (w want) is(f finding) bool {
	return w.check == f.Check && names(f.Object, w.object) && strings.Contains(f.Cause, w.cause) &&
		strings.Contains(f.Remedy, w.remedy) && (w.page == "" || w.page == f.Page)
}

// names reports whether an object has a wanted part. A part that ends with a separator may be the
// begin of a name, other parts not: "torn" is not the begin of "torn-too".
func names(object, part string) bool {
	if part == "" || strings.HasSuffix(part, "-") || strings.HasSuffix(part, "/") {
		return strings.Contains(object, part)
	}
	return strings.Contains(object+" ", part+" ") || strings.Contains(object, part+"/")
}

// step has faults that do not interfere: they are there at the same time.
type step struct {
	name   string
	doctor []string     // arguments of doctor
	begin  func(*scene) // for all faults
	faults []fault
}

// steps are all faults.
func steps() []step {
	return slices.Concat(objectSteps(), shareSteps(), nodeSteps(), podSteps(), claimSteps(), volumeSteps(), rootSteps(), routerSteps(), beforeSteps())
}

// summary is the result of all steps.
type summary struct {
	injected, named int
	withoutFinding  int // faults that alerts report, and doctor does not
	missed, false   []string
	unproven        []string // rows whose message no finding has
	fired, resolved map[string]bool
	lasting         map[string]bool
	early           []string        // lasting alerts that fired before their first fault
	beside          map[string]bool // alerts that fired in a step without a fault of theirs
	unended         []string        // alerts that did not end after the repair
	consequences    map[string]bool
	panels          map[string]bool // of the dashboards, empty without faults, that had results
}

// scene is a step of a test.
type scene struct {
	*prometheus
	examine doctortest.Doctor
	summary *summary
	repairs *[]func()
	args    *[]string // of doctor
	left    int       // steps, this one included
}

// least is the least share of a step: most steps need less time than others, and than their share.
const least = 15 * time.Minute

// allot begins a part of a step, whose waits get the step's share of the time that the test has
// left. A fault that is missed then ends its step, and not the test.
func (s *scene) allot() {
	if deadline, ok := s.T.Deadline(); ok {
		rest := time.Until(deadline)
		s.end = time.Now().Add(min(rest, max(rest/time.Duration(s.left), least)))
	}
}

// doctor runs doctor with further arguments, and returns the report and the exit code.
func (s *scene) doctor(args ...string) (report, int) {
	s.Helper()
	return s.examine(s.T, args...)
}

// finds waits until doctor has a finding.
func (s *scene) finds(w want) {
	s.Helper()
	await.NoError(s, fmt.Sprintf("there is a finding %+v", w), func() error {
		r, _ := s.doctor()
		if !slices.ContainsFunc(r.Findings, w.is) {
			return fmt.Errorf("the report is\n%s", r)
		}
		return nil
	})
}

// later has the end of the step repair a part of a fault: the last part first.
func (s *scene) later(repair func()) { *s.repairs = append(*s.repairs, repair) }

// repair calls the functions of later. It has a share of its own: the next steps need the repair.
func (s *scene) repair() {
	s.allot()
	defer func() {
		if len(*s.repairs) > 0 { // one failed
			s.repair()
		}
	}()
	for len(*s.repairs) > 0 {
		last := len(*s.repairs) - 1
		f := (*s.repairs)[last]
		*s.repairs = (*s.repairs)[:last]
		f()
	}
}

func begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{prometheus: start(t), examine: doctortest.Build(t, kube), repairs: &[]func(){}, args: &[]string{},
		summary: &summary{fired: map[string]bool{}, resolved: map[string]bool{}, lasting: map[string]bool{},
			consequences: map[string]bool{}, beside: map[string]bool{}, panels: map[string]bool{}}}
	s.well()
	s.isQuiet() // all alerts wait for seconds only, so the installation causes some
	return s
}

// in returns the scene for another test.
func (s *scene) in(t *testing.T) *scene {
	inner := *s
	inner.prometheus = &prometheus{T: t, Server: s.Server}
	return &inner
}

// TestFaults causes each fault until doctor names it and its alerts fire, and repairs it until
// doctor names nothing and the alerts end. A healthy cluster has no alert.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("this needs a cluster")
	}
	s := begin(t)
	defer func() { t.Log(s.summary) }()
	t.Run("none", func(t *testing.T) {
		s := s.in(t)
		for range 30 { // a scrape every 2 s
			s.scraped()
			if names, err := s.firing(0); err != nil || len(names) > 0 {
				t.Fatalf("on a healthy cluster %v fires, %v", slices.Collect(maps.Keys(names)), err)
			}
		}
	})
	defer func() { endShares(s) }()
	all := steps()
	for i, step := range all {
		s.left = len(all) - i
		if server != nil && !strings.HasPrefix(step.name, "shares") {
			endShares(s)
		}
		t.Run(step.name, func(t *testing.T) { s.in(t).run(step) })
	}
}

// run causes the faults of a step, those that the flag -run selects.
func (s *scene) run(step step) {
	var chosen []fault
	began := time.Now()
	s.allot()
	defer s.repair()
	*s.args = step.doctor
	if step.begin != nil {
		step.begin(s)
	}
	var quiet time.Time // after it an alert that fires is of this step
	for _, f := range step.faults {
		s.Run(f.name, func(t *testing.T) {
			outer := s.T // the repairs belong to the step
			s.prometheus.T = t
			defer func() { s.prometheus.T = outer }()
			s.fires(false, time.Now(), f.alerts...)
			s.fireAlready(f.lasting)
			if quiet.IsZero() {
				quiet = time.Now()
			}
			s.summary.injected++
			f.cause(s)
			chosen = append(chosen, f)
		})
	}
	if len(chosen) == 0 {
		return
	}
	s.Logf("%5.1f s: caused %d faults", time.Since(began).Seconds(), len(chosen))
	s.isNamed(chosen)
	var alerts, lasting []string
	for _, f := range chosen {
		alerts, lasting = append(alerts, f.alerts...), append(lasting, f.lasting...)
	}
	all := append(slices.Clone(alerts), lasting...)
	fired := s.fires(true, quiet, all...)
	if fired {
		s.summary.add(s.summary.fired, all)
		s.summary.add(s.summary.lasting, lasting)
	}
	s.firesBeside(quiet, slices.Concat(alerts, lasting))
	s.seePanels()
	s.repair()
	await.Happens(s, "no volume and no snapshot is left", func() error {
		left, err := s.try("get", "pv,volumesnapshotcontents", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("there are %s", left)
		}
		return err
	})
	s.isSilent(chosen)
	if s.fires(false, time.Now(), alerts...) && fired {
		s.summary.add(s.summary.resolved, alerts)
	}
	if server == nil {
		s.well()
	}
	s.isQuiet()
	s.Logf("%5.1f s for the step", time.Since(began).Seconds())
}

// firesBeside notes the alerts that have fired since a time and are not expected: consequences of
// the faults, as all alerts wait for seconds only.
func (s *scene) firesBeside(since time.Time, expected []string) {
	s.Helper()
	names, err := s.firing(time.Since(since))
	s.must(err)
	for _, a := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(expected, a) && !s.summary.lasting[a] {
			s.summary.beside[a] = true
			s.Logf("a consequence: the alert %s", a)
		}
	}
}

// isQuiet waits until no alert fires, except for those that last for hours.
func (s *scene) isQuiet() {
	s.Helper()
	lasting := map[string]bool{}
	for _, step := range steps() {
		for _, f := range step.faults {
			s.summary.add(lasting, f.lasting)
		}
	}
	var left []string
	if !await.Happens(s, "no alert fires", func() error {
		names, err := s.firing(0)
		maps.DeleteFunc(names, func(a string, _ bool) bool { return lasting[a] })
		if left = slices.Sorted(maps.Keys(names)); err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	}) {
		s.summary.unended = append(s.summary.unended, left...)
	}
}

// fireAlready notes the alerts that fire before their fault, because of an earlier one.
func (s *scene) fireAlready(alerts []string) {
	s.Helper()
	names, err := s.firing(0)
	s.must(err)
	for _, a := range alerts {
		if names[a] && !s.summary.lasting[a] {
			s.summary.early = append(s.summary.early, a)
		}
	}
}

func (*summary) add(to map[string]bool, names []string) {
	for _, n := range names {
		to[n] = true
	}
}

// isNamed waits until doctor names each fault, with exit code 1, and has the messages of its rows
// as evidence.
func (s *scene) isNamed(faults []fault) {
	s.Helper()
	start := time.Now()
	missing := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return len(f.named) == 0 })
	s.summary.withoutFinding += len(faults) - len(missing)
	unproven := map[string]string{} // the row, and its fault
	for _, f := range missing {
		for _, row := range f.rows {
			unproven[row] = f.name
		}
	}
	if await.Happens(s, "doctor names all faults, with the messages of their rows", func() error {
		r, code := s.doctor(*s.args...)
		s.judge(r, faults)
		missing = slices.DeleteFunc(missing, func(f fault) bool {
			isNamed := code == 1 && len(s.unnamed(r, f.named)) == 0
			if isNamed {
				s.summary.named++
				s.Logf("%5.1f s: named: %s", time.Since(start).Seconds(), f.name)
			}
			return isNamed
		})
		for _, f := range faults {
			for _, row := range f.rows {
				if f.proves(r, row) {
					delete(unproven, row)
				}
			}
		}
		var errs []error
		for _, f := range missing {
			errs = append(errs, fmt.Errorf("%s: doctor has not named %+v, exit code %d", f.name, s.unnamed(r, f.named), code))
		}
		for row, name := range unproven {
			errs = append(errs, fmt.Errorf("no finding of %s has the message of %q", name, row))
		}
		if len(errs) > 0 {
			errs = append(errs, fmt.Errorf("the report:\n%s", r))
		}
		return errors.Join(errs...)
	}) {
		return
	}
	for _, f := range missing {
		s.summary.missed = append(s.summary.missed, f.name)
	}
	s.summary.unproven = append(s.summary.unproven, slices.Sorted(maps.Keys(unproven))...)
}

// unnamed returns the findings that a report does not have.
func (s *scene) unnamed(r report, wants []want) (all []want) {
	for _, w := range wants {
		if !slices.ContainsFunc(r.Findings, w.is) {
			all = append(all, w)
		}
	}
	return all
}

// judge counts the findings that belong to none of the faults.
func (s *scene) judge(r report, faults []fault) {
	s.Helper()
	for _, f := range r.Findings {
		expected := slices.ContainsFunc(faults, func(c fault) bool {
			return slices.ContainsFunc(slices.Concat(c.named, c.also), func(w want) bool {
				return w.is(f) || w.check == f.Check && names(f.Object, w.object) &&
					strings.HasPrefix(f.Cause, "the volume is not healthy") // the event with the reason comes later than the metric
			})
		})
		name := fmt.Sprintf("%s: %s: %s: %s", s.Name(), f.Check, f.Object, f.Cause)
		if isNamed := slices.ContainsFunc(faults, func(c fault) bool { return slices.ContainsFunc(c.named, is(f)) }); expected && !isNamed && !s.summary.consequences[name] {
			s.summary.consequences[name] = true
			s.Logf("a consequence: %s: %s: %s", f.Check, f.Object, f.Cause)
		}
		if !expected && !slices.Contains(s.summary.false, name) {
			s.summary.false = append(s.summary.false, name)
			s.Errorf("a false alarm: %+v", f)
		}
	}
}

// isSilent waits until doctor names nothing, with exit code 0.
func (s *scene) isSilent(faults []fault) {
	s.Helper()
	start := time.Now()
	if await.Happens(s, "doctor names nothing", func() error {
		r, code := s.doctor(*s.args...)
		s.judge(r, faults)
		if code != 0 {
			return fmt.Errorf("exit code %d:\n%s", code, r)
		}
		return nil
	}) {
		s.Logf("%5.1f s: doctor names nothing", time.Since(start).Seconds())
	}
}

func (s *summary) String() string {
	list := func(m map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
	return fmt.Sprintf("faults: %d injected, %d named, %d without a finding of doctor, %d missed %q\n"+
		"rows without evidence: %d %q\nfalse alarms: %d %q\nalerts: %d fired (%s), "+
		"%d ended (%s), %d last for hours (%s), of which fired before their fault: %q\n"+
		"alerts of no fault of their step: %d fired (%s), alerts that did not end: %q\n"+
		"panels without a result on a healthy cluster that had one: %s", s.injected, s.named, s.withoutFinding,
		len(s.missed), s.missed, len(s.unproven), s.unproven, len(s.false), s.false,
		len(s.fired), list(s.fired), len(s.resolved), list(s.resolved), len(s.lasting), list(s.lasting), s.early,
		len(s.beside), list(s.beside), s.unended, list(s.panels))
}
