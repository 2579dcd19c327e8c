package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
)

// privileges returns the rights of a pod beyond the minimum: an ordinary user, no capabilities, no
// escalation, the runtime's filter of system calls, no path of the node, no token, and no writable
// path outside of its volumes.
func privileges(p core.PodSpec) (all []string) {
	if p.HostNetwork || p.HostPID || p.HostIPC {
		all = append(all, "pod: the host's namespaces")
	}
	if p.ShareProcessNamespace != nil && *p.ShareProcessNamespace {
		all = append(all, "both: shareProcessNamespace")
	}
	if len(p.InitContainers)+len(p.EphemeralContainers) > 0 {
		all = append(all, "pod: containers that nobody looks at")
	}
	for _, c := range p.Containers {
		for _, what := range append(ofContainer(p.SecurityContext, c), ofMounts(p, c)...) {
			all = append(all, c.Name+": "+what)
		}
	}
	return all
}

// ofContainer returns the rights in the security context of a container. The pod's context has the
// defaults.
func ofContainer(pod *core.PodSecurityContext, c core.Container) (all []string) {
	s := c.SecurityContext
	if s == nil || pod == nil {
		return []string{"no security context"}
	}
	nonRoot, user, filter := s.RunAsNonRoot, s.RunAsUser, s.SeccompProfile
	if nonRoot == nil {
		nonRoot = pod.RunAsNonRoot
	}
	if user == nil {
		user = pod.RunAsUser
	}
	if filter == nil {
		filter = pod.SeccompProfile
	}
	say := func(is bool, what string) {
		if is {
			all = append(all, what)
		}
	}
	isPrivileged := s.Privileged != nil && *s.Privileged
	say(isPrivileged, "privileged")
	say(user == nil, "any user")
	say(user != nil && *user == 0, "uid 0")
	say(user != nil && *user != 0 && (nonRoot == nil || !*nonRoot), "no runAsNonRoot")
	say(s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem, "a writable root filesystem")
	say(s.ProcMount != nil, "procMount")
	say(slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool { return p.HostPort != 0 }), "a port of the host")
	if isPrivileged { // which is all of the following
		return all
	}
	say(s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation, "allowPrivilegeEscalation")
	say(s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) ||
		len(s.Capabilities.Add) > 0, "capabilities")
	say(filter == nil || filter.Type != core.SeccompProfileTypeRuntimeDefault, "no seccomp profile")
	return all
}

// ofMounts returns the node's paths in a container, and whether the container has a token.
func ofMounts(p core.PodSpec, c core.Container) (all []string) {
	for _, m := range c.VolumeMounts {
		_, v := volume(p, c, m.Name)
		switch {
		case v.HostPath != nil:
			what := "hostPath `" + v.HostPath.Path + "`"
			if m.MountPropagation != nil {
				what += fmt.Sprintf(", %s", *m.MountPropagation)
			}
			if m.ReadOnly {
				what += ", read-only"
			}
			all = append(all, what)
		case v.Projected != nil:
			all = append(all, "a token for the API")
		case v.EmptyDir == nil && !m.ReadOnly:
			all = append(all, "writes to "+m.Name)
		}
	}
	return all
}

var privilegeRow = regexp.MustCompile("(?m)^\\| `?([a-z-]+)`? \\| ([^|]+) \\| [^|]{20,} \\|$")

// checkPrivileges compares the rights of the pods with the table in docs/how-to/install.md, each
// row of which has the reason.
func (m *manifests) checkPrivileges(page string) (wrong []string) {
	_, table, found := strings.Cut(page, "\n## Privileges\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var told []string
	for _, row := range privilegeRow.FindAllStringSubmatch(table, -1) {
		told = append(told, row[1]+": "+strings.TrimSpace(row[2]))
	}
	if !found {
		return []string{"docs/how-to/install.md has no table of privileges"}
	}
	have := append(privileges(m.controller.Spec.Template.Spec), privileges(m.node.Spec.Template.Spec)...)
	for _, p := range have {
		if !slices.Contains(told, p) {
			wrong = append(wrong, "privileges: the table has no row for "+p)
		}
	}
	for _, p := range told {
		if !slices.Contains(have, p) {
			wrong = append(wrong, "privileges: the table has a row for nothing: "+p)
		}
	}
	return wrong
}
