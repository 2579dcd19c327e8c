package healthmonitor

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

func TestPrintable(t *testing.T) {
	for _, c := range []struct {
		name, in string
		limit    int
		want     string
	}{
		{"plain words stay", "disk 3 of 4 failed", 99, "disk 3 of 4 failed"},
		{"lines become one", "one\r\ntwo\tthree", 99, "one two three"},
		{"control characters and what turns text around are spaces", "a\x1b[31mb\x00c\u202ed", 99, "a [31mb c d"},
		{"what is not UTF-8 is marked", "a\xff\xfeb", 99, "a\ufffdb"},
		{"what just fits stays", "ééé", 6, "ééé"},
		{"what is too long is cut between runes", strings.Repeat("é", 20), 16, strings.Repeat("é", 6) + "…"},
		{"what is much too long is, too", strings.Repeat("é", 1<<20), 16, strings.Repeat("é", 6) + "…"},
		{"nothing but noise is nothing", "\x00\x01\n", 99, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := printable(c.in, c.limit); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWord(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"a word stays", "BadBlocks", "BadBlocks"},
		{"two by colon and comma stay", "A:b,C_9", "A:b,C_9"},
		{"what cannot be in one is an underscore", "disk failed\n!", "disk_failed__"},
		{"it begins with a letter", "99_Bottles", "Bottles"},
		{"it does not end in punctuation", "Slow,:", "Slow"},
		{"nothing has a word", "", "Unspecified"},
		{"noise has one, too", "\x00é9", "Unspecified"},
		{"it is cut to 256 bytes", strings.Repeat("a", 300), strings.Repeat("a", 256)},
		{"and does not end in punctuation then", strings.Repeat("a", 255) + ":b", strings.Repeat("a", 255)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := word(c.in); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// No fuzz target: instrumented, client-go takes minutes to compile and 10 s to try 200 inputs.
func TestNoiseMakesAConditionThatTheAPIServerTakes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "Z", "0", "_", ":", ",", " ", "\n", "\x1b", "\x00", "é", "\u202e", "𝄞", "\xff",
		"\xed\xa0\x80"}
	noise := func() string {
		var b strings.Builder
		for range random.IntN(2000) {
			b.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		return b.String()
	}
	for range 2000 {
		reason, message := noise(), noise()
		c := condition("Degraded", reason, message)
		if len(c.Reason) > maxReason || len(metavalidation.IsValidConditionReason(c.Reason)) > 0 {
			t.Fatalf("reason %q of %q", c.Reason, reason)
		}
		if len(c.Message) > maxMessage || !utf8.ValidString(c.Message) ||
			strings.ContainsAny(c.Message, "\n\x1b\x00\u202e") {
			t.Fatalf("message %q of %q", c.Message, message)
		}
	}
}

func TestAHostileDriverBreaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var many []*csi.VolumeHealth_VolumeHealthEntry
		for i := range 40 {
			many = append(many, degraded(fmt.Sprintf("Reason%02d", i), strings.Repeat("é\n", 2000)))
		}
		many = append(many, lost(strings.Repeat("\x1b!", 500), "\x1b[2J\u202egone"),
			entry(csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, "X", ""), entry(77, "Y", ""))
		d := holding(sickness{"vol-a": many, "vol-b": slow})
		h := start(t, newAPI(true, bounds("a", "b")...), d)
		h.runRound()
		got := h.health("claim-a")
		if len(got) != maxConditions || got[0] != "DataLoss(Unspecified) [2J gone" {
			t.Errorf("%d conditions, the first %q, want %d and the worst", len(got), got[0], maxConditions)
		}
		h.wants("the volume beside it", h.health("claim-b"), "Degraded(Slow)")
		for _, e := range h.events.said() {
			if strings.Contains(e, "what no event may have") {
				t.Error(e)
			}
		}
	})
}

func TestHostileErrorsBecomeWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := behind(status.Error(codes.Unavailable, "node\x1b[31m\xff\n"+strings.Repeat("é", 2000)))
		h := start(t, newAPI(true, bounds("a", "b")...), d)
		h.runRound()
		h.runRound()
		if got := h.health("claim-a"); len(got) != 1 || !strings.HasPrefix(got[0], "Inaccessible(NoAnswer)") ||
			strings.ContainsAny(got[0], "\x1b\n") {
			t.Errorf("status %q", got)
		}
	})
}
