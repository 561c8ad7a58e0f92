{{- define "tidemark.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidemark.labels" -}}
{{ include "tidemark.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tidemark.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidemark.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* Sixteen bytes of a digest as base64: an id that is stable for a namespace and release. */}}
{{- define "tidemark.clusterId" -}}
{{- if .Values.clusterId -}}
{{- .Values.clusterId -}}
{{- else -}}
{{- printf "%s/%s" .Release.Namespace (include "tidemark.fullname" .) | sha256sum | trunc 16 | b64enc | trimSuffix "==" -}}
{{- end -}}
{{- end -}}

{{/* Host name of a headless service: dict "root" . "role" "controller" */}}
{{- define "tidemark.domain" -}}
{{ include "tidemark.fullname" .root }}-{{ .role }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{- define "tidemark.voters" -}}
{{- $root := . -}}
{{- $voters := list -}}
{{- range $i := until (int .Values.controller.replicas) -}}
{{- $host := printf "%s-controller-%d.%s" (include "tidemark.fullname" $root) $i (include "tidemark.domain" (dict "root" $root "role" "controller")) -}}
{{- $voters = append $voters (printf "%d@%s:%d" $i $host (int $root.Values.controller.port)) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end -}}

{{/* server.properties without the settings of a single pod: dict "root" . "role" "broker" */}}
{{- define "tidemark.properties" -}}
{{- $values := .root.Values -}}
{{- $own := index $values .role -}}
process.roles={{ .role }}
controller.listener.names=CONTROLLER
controller.quorum.voters={{ include "tidemark.voters" .root }}
listeners={{ if eq .role "controller" }}CONTROLLER{{ else }}PLAINTEXT{{ end }}://:{{ $own.port }}
log.dirs=/var/lib/tidemark/data
{{- if $values.metrics.enabled }}
prometheus.listener=:{{ int $values.metrics.port }}
{{- end }}
{{- $settings := mustMergeOverwrite (deepCopy $values.config) (deepCopy $own.config) }}
{{- if eq .role "broker" }}
{{- range $key, $most := dict "offsets.topic.replication.factor" 3 "transaction.state.log.replication.factor" 3 "transaction.state.log.min.isr" 2 }}
{{- if not (hasKey $settings $key) }}
{{ $key }}={{ min $most (int $own.replicas) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $value := $settings }}
{{ $key }}={{ include "tidemark.text" $value }}
{{- end }}
{{- if $values.remoteStorage.enabled }}
{{- with $values.remoteStorage }}
remote.log.storage.system.enable=true
{{- if eq $.role "broker" }}
remote.log.storage.manager.class.name=s3
rsm.config.endpoint={{ .endpoint }}
rsm.config.bucket={{ .bucket }}
{{- if .region }}
rsm.config.region={{ .region }}
{{- end }}
{{- if .keyPrefix }}
rsm.config.key.prefix={{ .keyPrefix }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A number of a values file is a float: 1073741824 must not become 1.073741824e+09. */}}
{{- define "tidemark.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%d" (int64 .) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* An item of a network policy's ingress that lets scrapes in. */}}
{{- define "tidemark.metricsIngress" -}}
{{- if .Values.metrics.enabled -}}
- ports:
    - port: {{ int .Values.metrics.port }}
      protocol: TCP
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}
