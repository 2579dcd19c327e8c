package quotas

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/doctortest"
)

// TestAWrongClockIsNamed: doctor names a node whose clock is ahead or behind, and no other node. A
// guest has a clock of its own.
func TestAWrongClockIsNamed(t *testing.T) {
	doctor := doctortest.Build(t, kube)
	clocks := func() (all []doctortest.Finding) {
		r, _ := doctor(t)
		if r.Checks == 0 {
			t.Fatalf("doctor has checked nothing: %s", r)
		}
		for _, f := range r.Findings {
			if f.Check == "clocks" {
				all = append(all, f)
			}
		}
		return all
	}
	set := func(ahead time.Duration) {
		now := strconv.FormatInt(time.Now().Add(ahead).Unix(), 10)
		if _, err := guest.Run(context.Background(), "date", "--set=@"+now); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(0) })
	for _, ahead := range []time.Duration{0, 5 * time.Minute, 0, -5 * time.Minute, 0} {
		set(ahead)
		await.NoError(t, fmt.Sprintf("doctor reports a clock that is %v ahead", ahead), func() error {
			switch all := clocks(); {
			case ahead == 0 && len(all) == 0:
				return nil
			case ahead != 0 && len(all) == 1 && strings.Contains(all[0].Object, guest.Name) &&
				strings.Contains(all[0].Remedy, "synchronize the clock") && apart(t, all[0].Evidence, ahead) < 30*time.Second:
				return nil
			default:
				return fmt.Errorf("the findings are %+v", all)
			}
		})
	}
}

// apart returns the difference between the time in the evidence and another.
func apart(t *testing.T, evidence string, want time.Duration) time.Duration {
	t.Helper()
	var by, direction string
	fmt.Sscanf(evidence, "the clock of the node is %s %s ", &by, &direction)
	ahead, err := time.ParseDuration(by)
	if err != nil {
		t.Fatalf("the evidence is %q: %v", evidence, err)
	}
	if direction == "behind" {
		ahead = -ahead
	}
	return (ahead - want).Abs()
}
