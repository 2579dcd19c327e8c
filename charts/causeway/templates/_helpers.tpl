{{/* Prefix of all names. */}}
{{- define "causeway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Namespace of all namespaced objects, as YAML. */}}
{{- define "causeway.namespace" -}}
{{- include "causeway.namespaceName" . | toYaml -}}
{{- end -}}

{{/* The same as plain text, for comparisons and lookups. */}}
{{- define "causeway.namespaceName" -}}
{{- .Values.namespace.name | default .Release.Namespace -}}
{{- end -}}

{{/* Labels of every object. No selector uses them, so they may change. */}}
{{- define "causeway.labels" -}}
app.kubernetes.io/part-of: causeway
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image: (dict "root" $ "image" "driver"). A digest overrides a tag. */}}
{{- define "causeway.image" -}}
{{- $images := .root.Values.images -}}
{{- $image := index $images .image -}}
{{- $name := printf "%s/%s" $images.registry $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest | toYaml -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default $images.tag | default .root.Chart.AppVersion) | toYaml -}}
{{- end -}}
{{- end -}}

{{/* Security context of a container without privileges. */}}
{{- define "causeway.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The pod's part of a Windows HostProcess pod: KEP-3636, and Kubernetes' rules for such pods. */}}
{{- define "causeway.hostProcess" -}}
os: {name: windows}
hostNetwork: true   # required for HostProcess pods
securityContext:
  windowsOptions:
    hostProcess: true
    runAsUserName: {{ .runAsUserName | quote }}
{{- end -}}

{{/* Whether a HostProcess pod runs as SYSTEM: "true" or "". The names of accounts have no case. */}}
{{- define "causeway.isSystem" -}}
{{- if eq (lower .runAsUserName) "nt authority\\system" -}}true{{- end -}}
{{- end -}}

{{/* Environment variables from the value env, for tracing for example. */}}
{{- define "causeway.extraEnv" -}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{/* Whether the driver's disks are attached to nodes: its controller then has a backend and no router. "true" or "". */}}
{{- define "causeway.attached" -}}
{{- if and .Values.hostpath.enabled .Values.hostpath.csiDriver.attachRequired -}}true{{- end -}}
{{- end -}}

{{/* Names of the secrets of router and nodes. */}}
{{- define "causeway.routerSecret" -}}
{{- .Values.hostpath.certificates.routerSecret | default (printf "%s-router-%s" (include "causeway.fullname" .) (include "causeway.secretSuffix" .)) -}}
{{- end -}}
{{- define "causeway.nodesSecret" -}}
{{- .Values.hostpath.certificates.nodesSecret | default (printf "%s-nodes-%s" (include "causeway.fullname" .) (include "causeway.secretSuffix" .)) -}}
{{- end -}}

{{/* Generated secrets have names of their own: Helm deletes them when another source is selected, and must not delete the user's secrets. */}}
{{- define "causeway.secretSuffix" -}}
{{- eq .Values.hostpath.certificates.source "generate" | ternary "generated" "tls" -}}
{{- end -}}

{{/* A token for the API. automountServiceAccountToken would put it into every container. */}}
{{- define "causeway.apiAccess" -}}
- name: api-access
  projected:
    defaultMode: 0440
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600}
    - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{/* Placement of a controller's pods: (dict "controller" … "name" …). */}}
{{- define "causeway.controllerPlacement" -}}
{{- with .controller.priorityClassName }}
priorityClassName: {{ toYaml . }}
{{- end }}
nodeSelector: {{- merge (dict "kubernetes.io/os" "linux") .controller.nodeSelector | toYaml | nindent 2 }}
tolerations:
- {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
- {key: CriticalAddonsOnly, operator: Exists}
# Both pods may be on one node, for example after the other node was away. If that node fails, volumes cannot be created until
# other pods have started elsewhere. The pods have no state, so 30 s replace the usual 5 minutes.
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
{{- with .controller.tolerations }}
{{ toYaml . }}
{{- end }}
# Not a requirement, or a cluster of one node could not run both pods.
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
  matchLabelKeys: [pod-template-hash]
{{- with .controller.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Probes of a container: (dict "port" "driver-http" "ready" true "host" "127.0.0.1"). Without a host: the address of the pod. */}}
{{- define "causeway.probes" -}}
livenessProbe:
  httpGet: { {{- with .host }}host: {{ . }}, {{ end }}path: /healthz, port: {{ .port }}}
  timeoutSeconds: 5
  failureThreshold: 6
{{- if .ready }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  timeoutSeconds: 5
{{- end }}
{{- end -}}

{{/* A PodDisruptionBudget: (dict "root" $ "name" …). */}}
{{- define "causeway.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ include "causeway.namespace" .root }}
  labels: {{- include "causeway.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow   # a pod that waits for its certificates must not prevent the drain of a node
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end -}}

{{/* A service account whose token is not mounted automatically: (dict "root" $ "name" …). */}}
{{- define "causeway.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ include "causeway.namespace" .root }}
  labels: {{- include "causeway.labels" .root | nindent 4 }}
automountServiceAccountToken: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether hostpath.csiDriver has a trait: as the values say, else as hostpath has it, else not. "true" or "". */}}
{{- define "causeway.trait" -}}
{{- $said := index .root.Values.hostpath.csiDriver .name -}}
{{- if kindIs "bool" $said -}}{{ if $said }}true{{ end }}{{- else if not .root.Values.hostpath.backendArgs -}}true{{- end -}}
{{- end -}}

{{/* The field of a CSIDriver with which pods wait for the driver, from the values of a driver. */}}
{{- define "causeway.preventScheduling" -}}
{{- if .csiDriver.preventPodSchedulingIfMissing }}
  preventPodSchedulingIfMissing: true           # pods with claims wait until the driver is registered on a node
{{- end }}
{{- end -}}

{{/* Rejects fields of the CSIDriver that the API server does not know: it would drop them, or refuse the object. */}}
{{- define "causeway.validateCSIDrivers" -}}
{{- range $name := list "hostpath" "smb" -}}
{{- $driver := index $.Values $name -}}
{{- if and $driver.enabled $driver.csiDriver.preventPodSchedulingIfMissing (semverCompare "<1.36-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "%s.csiDriver.preventPodSchedulingIfMissing: Kubernetes %s does not have this field of the CSIDriver, which came with 1.36" $name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- $hostpath := .Values.hostpath -}}
{{- if and $hostpath.enabled (not $hostpath.backendArgs) -}}
{{- if and $hostpath.csiDriver.seLinuxMount (has "directory" $hostpath.kinds) -}}
{{- fail "hostpath.csiDriver.seLinuxMount: directories share a filesystem, and cannot be mounted with labels of their own. Set hostpath.kinds to [image]" -}}
{{- end -}}
{{- range $name, $class := $hostpath.storageClasses -}}
{{- if and $class (not (has (dig "kind" "" ($class | default dict)) $hostpath.kinds)) -}}
{{- fail (printf "hostpath.kinds: the class %s is for volumes of kind %s. Set the class to null, or add the kind" $name $class.kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Flag of the driver for the kinds of volumes, if they differ from the default. */}}
{{- define "causeway.kindsArg" -}}
{{- if ne (join "," .Values.hostpath.kinds) "directory,image" }}
- --kinds={{ join "," .Values.hostpath.kinds }}
{{- end }}
{{- end -}}

{{/* Rejects combinations of values that a schema cannot reject. */}}
{{- define "causeway.validate" -}}
{{- if and .Values.hostpath.enabled (.Capabilities.APIVersions.Has "storage.k8s.io/v1/CSIDriver") -}}{{/* without a cluster no kind is known */}}
{{- range $name, $has := dict "snapshotClass" "snapshot.storage.k8s.io/v1/VolumeSnapshotClass" "groupSnapshotClass" "groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass" -}}
{{- if and (index $.Values.hostpath $name).create (not ($.Capabilities.APIVersions.Has $has)) -}}
{{- fail (printf "hostpath.%s: the cluster does not serve %s. Create the CRDs first, as an installation without --skip-crds does, or set create to false (docs/how-to/install.md)" $name $has) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.namespace.create (eq (include "causeway.namespaceName" .) .Release.Namespace) -}}
{{- fail "namespace.create: Helm needs the release's namespace before it can make any object. Set namespace.name to another namespace, or create this namespace yourself (charts/causeway/README.md)" -}}
{{- end -}}
{{- if not (regexMatch (ternary "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" "^[a-z]([a-z0-9-]*[a-z0-9])?$" (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version)) (include "causeway.fullname" .)) -}}
{{- fail (printf "the release's name is the prefix of all names, and a Service cannot be called %s: set fullnameOverride, or use another release name" (include "causeway.fullname" .)) -}}
{{- end -}}
{{- range concat .Values.hostpath.extraArgs .Values.hostpath.backendArgs .Values.hostpath.windows.extraArgs -}}
{{- if and $.Values.hostpath.enabled (regexMatch "^--?peer-client(=|$)" .) (ne $.Values.hostpath.certificates.source "secrets") -}}
{{- fail "hostpath.extraArgs: --peer-client requires certificates.source: secrets. The certificates of the chart are for causeway-router" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.hostpath.enabled .Values.hostpath.certificates.issuerRef (ne .Values.hostpath.certificates.source "cert-manager") -}}
{{- fail "hostpath.certificates.issuerRef requires source: cert-manager" -}}
{{- end -}}
{{- if and .Values.hostpath.enabled (or (hasPrefix (printf "%s/" .Values.kubeletDir) (printf "%s/" .Values.hostpath.root)) (hasPrefix (printf "%s/" .Values.hostpath.root) (printf "%s/" .Values.kubeletDir))) -}}
{{- fail "hostpath.root and kubeletDir: one directory contains the other" -}}
{{- end -}}
{{- include "causeway.validateTrimInterval" . -}}
{{- $windowsRoot := printf "%s\\" (lower (trimSuffix "\\" .Values.hostpath.windows.root)) -}}
{{- $windowsKubelet := printf "%s\\" (lower (trimSuffix "\\" .Values.kubeletDirWindows)) -}}
{{- if and .Values.hostpath.enabled .Values.hostpath.windows.enabled (or (hasPrefix $windowsRoot $windowsKubelet) (hasPrefix $windowsKubelet $windowsRoot)) -}}
{{- fail "hostpath.windows.root and kubeletDirWindows: one directory contains the other" -}}
{{- end -}}
{{- $defaults := list -}}
{{- range $name, $class := .Values.hostpath.storageClasses -}}
{{- if and $class (dig "default" false ($class | default dict)) -}}
{{- $defaults = append $defaults $name -}}
{{- end -}}
{{- end -}}
{{- if and .Values.hostpath.enabled (gt (len $defaults) 1) -}}
{{- fail (printf "hostpath.storageClasses: %s are the default: only one class may be the default" (join ", " $defaults)) -}}
{{- end -}}
{{- if and .Values.hostpath.enabled (eq .Values.hostpath.driverName .Values.smb.driverName) -}}
{{- fail "hostpath.driverName and smb.driverName are the same: two drivers need two names" -}}
{{- end -}}
{{- include "causeway.validateCSIDrivers" . -}}
{{- include "causeway.validateAttached" . -}}
{{- include "causeway.validateWindows" . -}}
{{- if and .Values.hostpath.enabled .Values.hostpath.certificates.nodesDirectory (ne .Values.hostpath.certificates.source "secrets") -}}
{{- fail "hostpath.certificates.nodesDirectory requires source: secrets. You fill the directory on each node" -}}
{{- end -}}
{{- if and .Values.hostpath.enabled (eq (include "causeway.routerSecret" .) (include "causeway.nodesSecret" .)) -}}
{{- fail "hostpath.certificates.routerSecret and nodesSecret are the same: router and nodes must have different keys" -}}
{{- end -}}
{{- if and .Values.hostpath.enabled .Values.hostpath.windows.enabled .Values.hostpath.certificates.nodesDirectory -}}
{{- fail "hostpath.certificates.nodesDirectory is a directory of Linux nodes: with Windows nodes all nodes share a secret" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.nodeEgress) (or (hasKey .Values.env "OTEL_EXPORTER_OTLP_ENDPOINT") (hasKey .Values.env "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) -}}
{{- fail "env has the destination of traces, and networkPolicy permits no traffic from the nodes: set networkPolicy.nodeEgress" -}}
{{- end -}}
{{- if and .Values.snapshotController.enabled (not .Values.hostpath.enabled) -}}
{{- fail "snapshotController.enabled: the snapshot controller runs in hostpath's controller, which is disabled" -}}
{{- end -}}
{{- if .Values.hostpath.enabled -}}
{{- with lookup "apps/v1" "DaemonSet" (include "causeway.namespaceName" .) (printf "%s-node" (include "causeway.fullname" .)) -}}
{{- $was := dig "metadata" "annotations" "causeway.dev/driver" $.Values.hostpath.driverName . -}}
{{- if ne $was $.Values.hostpath.driverName -}}
{{- fail (printf "hostpath.driverName: this release's driver is called %s, in volumes and paths, and cannot be called otherwise: uninstall it first, or install another release, with classes of other names" $was) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects an interval of trims with which the driver does not start. A schema cannot add up hours, minutes and seconds. */}}
{{- define "causeway.validateTrimInterval" -}}
{{- with .Values.hostpath.trimInterval -}}
{{- $seconds := 0 -}}
{{- range $part := regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $seconds = add $seconds (mul (regexFind "[0-9]+" $part | atoi) (index (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" $part))) -}}
{{- end -}}
{{- if and $.Values.hostpath.enabled (not $.Values.hostpath.backendArgs) (gt $seconds 0) (lt $seconds 60) -}}
{{- fail (printf "hostpath.trimInterval: %s is too short: the minimum is one minute (1m). Empty trims nothing" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects combinations of values with and without attached disks. */}}
{{- define "causeway.validateAttached" -}}
{{- $hostpath := .Values.hostpath -}}
{{- if include "causeway.attached" . -}}
{{- if not $hostpath.backendArgs -}}
{{- fail "hostpath.csiDriver.attachRequired: hostpath has no disks to attach. Set hostpath.backendArgs to the flags of your backend" -}}
{{- end -}}
{{- if $hostpath.forgottenNodes -}}
{{- fail "hostpath.forgottenNodes: only a router reads it, and with hostpath.csiDriver.attachRequired there is none. Leave it empty" -}}
{{- end -}}
{{- if and $hostpath.controller.privileged (ne (int $hostpath.controller.replicas) 1) -}}
{{- fail "hostpath.controller.privileged: one pod serves the storage of its node. Set hostpath.controller.replicas to 1" -}}
{{- end -}}
{{- if and $hostpath.controller.privileged (not $hostpath.controller.nodeSelector) -}}
{{- fail "hostpath.controller.privileged: on another node the controller would have other storage. Set hostpath.controller.nodeSelector to labels of one node" -}}
{{- end -}}
{{- else if and $hostpath.enabled $hostpath.controller.privileged -}}
{{- fail "hostpath.controller.privileged requires hostpath.csiDriver.attachRequired: a router needs no storage" -}}
{{- else if and $hostpath.enabled (or $hostpath.controller.backendArgs $hostpath.controller.secretName) -}}
{{- fail "hostpath.controller.backendArgs and secretName require hostpath.csiDriver.attachRequired: a router has no backend" -}}
{{- end -}}
{{- end -}}

{{/* Rejects accounts of Windows without the rights for the volumes: docs/explanation/security.md. */}}
{{- define "causeway.validateWindows" -}}
{{- $hostpath := .Values.hostpath -}}
{{- if and $hostpath.enabled $hostpath.windows.enabled (not (include "causeway.isSystem" $hostpath.windows)) -}}
{{- if include "causeway.attached" . -}}
{{- fail (printf "hostpath.windows.runAsUserName: %s cannot have attached disks. Set it to NT AUTHORITY\\SYSTEM" $hostpath.windows.runAsUserName) -}}
{{- end -}}
{{- range $name, $class := $hostpath.storageClasses -}}
{{- if and $class (eq (dig "fsType" "" ($class | default dict)) "ntfs") (not $hostpath.backendArgs) -}}
{{- fail (printf "hostpath.windows.runAsUserName: %s cannot have images, and the class %s has them on Windows. Set it to NT AUTHORITY\\SYSTEM, or remove the class" $hostpath.windows.runAsUserName $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.smb.enabled .Values.smb.windows.enabled (not (include "causeway.isSystem" .Values.smb.windows)) -}}
{{- fail (printf "smb.windows.runAsUserName: %s cannot map shares. Set it to NT AUTHORITY\\SYSTEM" .Values.smb.windows.runAsUserName) -}}
{{- end -}}
{{- end -}}

{{/* Log flags of a driver, if they differ from the defaults. */}}
{{- define "causeway.logArgs" -}}
{{- if ne .Values.log.format "text" }}
- --log-format={{ .Values.log.format }}
{{- end }}
{{- with int .Values.log.verbosity }}
- -v={{ . }}
{{- end }}
{{- end -}}

{{/* csi-sidecars-node on a Linux node: (dict "kubelet" … "driver" … "http" port "probe" port). */}}
{{- define "causeway.nodeSidecarArgs" -}}
- --controllers=node-driver-registrar,livenessprobe
- --csi-address=/csi/csi.sock
- --http-endpoint=:{{ .http }}
- --shutdown-timeout=4s
- --node-driver-registrar-kubelet-registration-path={{ .kubelet }}/plugins/{{ .driver }}/csi.sock
- --node-driver-registrar-plugin-registration-path=/registration
- --livenessprobe-health-port={{ .probe }}
{{- end -}}

{{/* csi-sidecars-node on a Windows node: (dict "kubelet" … "plugin" … "http" port "probe" port). */}}
{{- define "causeway.windowsSidecarArgs" -}}
- --controllers=node-driver-registrar,livenessprobe
- --csi-address=unix://{{ .plugin }}\csi.sock
- --http-endpoint=:{{ .http }}
- --shutdown-timeout=4s
- --node-driver-registrar-kubelet-registration-path={{ .plugin }}\csi.sock
- --node-driver-registrar-plugin-registration-path={{ .kubelet }}\plugins_registry
- --livenessprobe-health-port=127.0.0.1:{{ .probe }}   # the network is the node's
{{- end -}}

{{/* Sources that may read metrics. */}}
{{- define "causeway.metricsIngress" -}}
- from:
  {{- with .Values.networkPolicy.metricsFrom }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - namespaceSelector:
      matchLabels: {causeway.dev/scrapes-metrics: "true"}
  {{- end }}
  ports:
  - {protocol: TCP, port: 9809}
  - {protocol: TCP, port: 9811}
{{- end -}}
