{{/* Prefix of all names. */}}
{{- define "copy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. No selector uses them. */}}
{{- define "copy.labels" -}}
app.kubernetes.io/part-of: causeway-copy
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image: (dict "root" $ "image" "copy-agent"). */}}
{{- define "copy.image" -}}
{{- $images := .root.Values.images -}}
{{- printf "%s/%s:%s" $images.registry .image ($images.tag | default .root.Chart.AppVersion) | toYaml -}}
{{- end -}}

{{/* Name of a secret: (dict "root" $ "part" "agents"). Generated secrets have names of their own: Helm deletes them. */}}
{{- define "copy.secret" -}}
{{- printf "%s-%s" (include "copy.fullname" .root) .part -}}
{{- if eq .root.Values.certificates.source "generate" -}}-generated{{- end -}}
{{- end -}}

{{/* Rejects combinations of values that a schema cannot reject. */}}
{{- define "copy.validate" -}}
{{- $c := .Values.certificates -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "copy.fullname" .)) -}}
{{- fail (printf "the release's name is the prefix of all names, and a Service cannot be called %s: set fullnameOverride, or use another release name" (include "copy.fullname" .)) -}}
{{- end -}}
{{- if and $c.issuerRef (ne $c.source "cert-manager") -}}
{{- fail "certificates.issuerRef requires source: cert-manager" -}}
{{- end -}}
{{- if and $c.caBundle (ne $c.source "secrets") -}}
{{- fail "certificates.caBundle requires source: secrets" -}}
{{- end -}}
{{- end -}}
