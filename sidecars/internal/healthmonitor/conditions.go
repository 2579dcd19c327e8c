package healthmonitor

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
)

// What the API server takes: VolumeHealthStatus and VolumeHealthCondition in k8s.io/api/core/v1, v1.37. Lengths are bytes.
const (
	maxConditions = 16
	maxReason     = 256
	maxMessage    = 1024
)

// kinds are those that CSI v1.13 has. "COs MUST ignore unknown VolumeHealthErrorType values": VolumeHealth.health_statuses.
var kinds = map[csi.VolumeHealthErrorType]v1.VolumeHealthStatusType{
	csi.VolumeHealthErrorType_DEGRADED:     v1.VolumeHealthDegraded,
	csi.VolumeHealthErrorType_INACCESSIBLE: v1.VolumeHealthInaccessible,
	csi.VolumeHealthErrorType_DATA_LOSS:    v1.VolumeHealthDataLoss,
}

// severity is the order in which conditions stand, the worst first: if there are too many, the least bad are left out.
var severity = []v1.VolumeHealthStatusType{v1.VolumeHealthDataLoss, v1.VolumeHealthInaccessible, v1.VolumeHealthDegraded}

// conditions returns what a driver says as the API server takes it, and how many statuses were of a type nobody knows yet.
func conditions(h *csi.VolumeHealth) (known []v1.VolumeHealthCondition, unknown int) {
	for _, e := range h.GetHealthStatuses() {
		status, ok := kinds[e.GetStatus()]
		if !ok {
			unknown++
			continue
		}
		known = append(known, condition(status, e.GetReason(), e.GetMessage()))
	}
	return normal(known), unknown
}

// condition makes one that the API server takes, whatever the words are.
func condition(status v1.VolumeHealthStatusType, reason, message string) v1.VolumeHealthCondition {
	return v1.VolumeHealthCondition{Status: status, Reason: word(reason), Message: printable(message, maxMessage)}
}

// normal puts conditions in order and drops doubles and what is too much.
func normal(list []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	list = slices.Clone(list)
	slices.SortStableFunc(list, compare)
	list = slices.CompactFunc(list, func(a, b v1.VolumeHealthCondition) bool { return compare(a, b) == 0 })
	return list[:min(len(list), maxConditions)]
}

// compare looks at status and reason only, which are what a condition is; its message may vary.
func compare(a, b v1.VolumeHealthCondition) int {
	return cmp.Or(cmp.Compare(slices.Index(severity, a.Status), slices.Index(severity, b.Status)), cmp.Compare(a.Reason, b.Reason))
}

// minus returns those of a that aren't in b.
func minus(a, b []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	return slices.DeleteFunc(slices.Clone(a), func(c v1.VolumeHealthCondition) bool {
		return slices.ContainsFunc(b, func(d v1.VolumeHealthCondition) bool { return compare(c, d) == 0 })
	})
}

// same reports whether a and b, which are normal, differ in messages at most.
func same(a, b []v1.VolumeHealthCondition) bool {
	return slices.EqualFunc(a, b, func(c, d v1.VolumeHealthCondition) bool { return compare(c, d) == 0 })
}

// printable makes one line of at most limit bytes of what anybody may have sent: neither a log nor a terminal takes harm.
func printable(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), 4*limit)], string(unicode.ReplacementChar)) // a message may have megabytes
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	return cut(strings.Join(strings.Fields(s), " "), limit)
}

const ellipsis = "…"

// cut shortens s to limit bytes, and no rune is cut in two.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit - len(ellipsis)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}

// word makes a condition's reason of s: [A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])? of at most 256 bytes, as IsValidConditionReason in
// k8s.io/apimachinery/pkg/apis/meta/v1/validation demands. What can't be in one becomes an underscore.
func word(s string) string {
	s = strings.Map(func(r rune) rune {
		if letter(r) || r >= '0' && r <= '9' || strings.ContainsRune("_,:", r) {
			return r
		}
		return '_'
	}, s[:min(len(s), 4*maxReason)])
	s = strings.TrimLeftFunc(s, func(r rune) bool { return !letter(r) })
	if s = strings.TrimRight(s[:min(len(s), maxReason)], ",:"); s == "" {
		return "Unspecified" // the spec requires one, and so does the API server
	}
	return s
}

func letter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
