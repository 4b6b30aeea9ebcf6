{{- define "trivet.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "trivet.labels" -}}
app.kubernetes.io/name: trivet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "trivet.selector" -}}
app.kubernetes.io/name: trivet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trivet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The name servers as a TOML list: those that were named, or each of this release's. */}}
{{- define "trivet.nameServers" -}}
{{- $name := include "trivet.name" . -}}
{{- $found := .Values.nameServers.addresses -}}
{{- if not $found -}}
{{- $found = list -}}
{{- range $number := until (int .Values.nameServers.replicas) -}}
{{- $found = append $found (printf "%s-namesrv-%d.%s-namesrv:9876" $name $number $name) -}}
{{- end -}}
{{- end -}}
{{ toJson $found }}
{{- end -}}

{{/* The peers as a TOML table. Pods keep their names, so that an address stays a node's wherever it runs. */}}
{{- define "trivet.peers" -}}
{{- $name := include "trivet.name" . -}}
{{- $found := list -}}
{{- range $number := until (int .Values.brokers.replicas) -}}
{{- $found = append $found (printf "n%d = \"%s-broker-%d.%s-broker:40911\"" $number $name $number $name) -}}
{{- end -}}
{ {{ join ", " $found }} }
{{- end -}}

{{- define "trivet.secret" -}}
{{- $value := required (printf "secrets.%s is needed, at least 16 characters" .name) .value -}}
{{- if lt (len $value) 16 -}}
{{- fail (printf "secrets.%s has %d characters, at least 16 are needed" .name (len $value)) -}}
{{- end -}}
{{ toJson $value }}
{{- end -}}

{{- define "trivet.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "trivet.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10911
runAsGroup: 10911
fsGroup: 10911
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
