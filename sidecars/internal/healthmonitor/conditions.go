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

// Limits of the API server: VolumeHealthStatus and VolumeHealthCondition in k8s.io/api/core/v1,
// v1.37. Lengths are bytes.
const (
	maxConditions = 16
	maxReason     = 256
	maxMessage    = 1024
)

// statusUnknown is the status of a condition whose type the monitor does not know. It is proposed
// for KEP-1432 (https://github.com/kubernetes/enhancements/pull/6379), and no API of Kubernetes up
// to 1.37 has it.
const statusUnknown v1.VolumeHealthStatusType = "Unknown"

// kinds are the types of CSI v1.13. "COs MUST ignore unknown VolumeHealthErrorType values":
// VolumeHealth.health_statuses.
var kinds = map[csi.VolumeHealthErrorType]v1.VolumeHealthStatusType{
	csi.VolumeHealthErrorType_DEGRADED:     v1.VolumeHealthDegraded,
	csi.VolumeHealthErrorType_INACCESSIBLE: v1.VolumeHealthInaccessible,
	csi.VolumeHealthErrorType_DATA_LOSS:    v1.VolumeHealthDataLoss,
}

// severity orders conditions, the worst first. Above the limit the least severe are left out.
var severity = []v1.VolumeHealthStatusType{v1.VolumeHealthDataLoss, v1.VolumeHealthInaccessible,
	v1.VolumeHealthDegraded, statusUnknown}

// conditions returns the conditions of a driver in the form of the API server, and the number of
// those whose type is unknown.
func conditions(h *csi.VolumeHealth) (all []v1.VolumeHealthCondition, unknown int) {
	for _, e := range h.GetHealthStatuses() {
		status, ok := kinds[e.GetStatus()]
		if !ok {
			unknown++
			status = statusUnknown
		}
		all = append(all, condition(status, e.GetReason(), e.GetMessage()))
	}
	return normal(all), unknown
}

// known returns the conditions whose type is known.
func known(list []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	return slices.DeleteFunc(slices.Clone(list), isUnknown)
}

func isUnknown(c v1.VolumeHealthCondition) bool { return c.Status == statusUnknown }

// condition returns a condition that the API server accepts, from any text.
func condition(status v1.VolumeHealthStatusType, reason, message string) v1.VolumeHealthCondition {
	return v1.VolumeHealthCondition{Status: status, Reason: word(reason), Message: printable(message, maxMessage)}
}

// normal sorts conditions, and drops duplicates and those above the limit.
func normal(list []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	list = slices.Clone(list)
	slices.SortStableFunc(list, compare)
	list = slices.CompactFunc(list, func(a, b v1.VolumeHealthCondition) bool { return compare(a, b) == 0 })
	return list[:min(len(list), maxConditions)]
}

// compare compares status and reason, which identify a condition. The message may change.
func compare(a, b v1.VolumeHealthCondition) int {
	return cmp.Or(cmp.Compare(slices.Index(severity, a.Status), slices.Index(severity, b.Status)),
		cmp.Compare(a.Reason, b.Reason))
}

// minus returns the conditions of a that are not in b.
func minus(a, b []v1.VolumeHealthCondition) []v1.VolumeHealthCondition {
	return slices.DeleteFunc(slices.Clone(a), func(c v1.VolumeHealthCondition) bool {
		return slices.ContainsFunc(b, func(d v1.VolumeHealthCondition) bool { return compare(c, d) == 0 })
	})
}

// same reports whether a and b, both normal, are equal except for messages.
func same(a, b []v1.VolumeHealthCondition) bool {
	return slices.EqualFunc(a, b, func(c, d v1.VolumeHealthCondition) bool { return compare(c, d) == 0 })
}

// printable returns s as a line of at most limit bytes that is safe for logs and terminals.
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

// cut shortens s to limit bytes at the end of a rune.
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

// word returns s as the reason of a condition: [A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])? of at most
// 256 bytes, as IsValidConditionReason in k8s.io/apimachinery/pkg/apis/meta/v1/validation requires.
// Other characters become underscores.
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
