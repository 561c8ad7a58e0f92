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
listeners={{ if eq .role "controller" }}CONTROLLER{{ else }}{{ include "tidemark.clientListener" .root }}{{ end }}://:{{ $own.port }}
{{- if and (eq .role "broker") $values.tls.enabled }},INTERNAL://:{{ int $values.tls.interBrokerPort }}{{ end }}
{{- if and (eq .role "broker") $values.broker.external.enabled }},EXTERNAL://:{{ int $values.broker.external.port }}{{ end }}
log.dirs=/var/lib/tidemark/data
{{- range $i := untilStep 1 (int (default 1 $own.persistence.volumes)) 1 }},/var/lib/tidemark-{{ $i }}/data{{ end }}
{{- if $values.metrics.enabled }}
prometheus.listener=:{{ int $values.metrics.port }}
{{- end }}
{{- if $values.tls.enabled }}
{{ include "tidemark.securityProperties" . }}
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

{{/* The affinity of a role's pods: dict "root" . "role" "broker" */}}
{{- define "tidemark.affinity" -}}
{{- $own := index .root.Values .role -}}
{{- $mode := .root.Values.scheduling.hostAntiAffinity -}}
{{- $labels := merge (dict "app.kubernetes.io/component" .role) (include "tidemark.selector" .root | fromYaml) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $apart := dict -}}
{{- if eq $mode "required" -}}
{{- $apart = dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else if eq $mode "preferred" -}}
{{- $preferred := dict "weight" 100 "podAffinityTerm" $term -}}
{{- $apart = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $preferred)) -}}
{{- end -}}
{{- mustMergeOverwrite $apart (deepCopy $own.affinity) | toYaml -}}
{{- end -}}

{{/* Ids of the brokers that an upgrade takes away, with spaces between. */}}
{{- define "tidemark.leaving" -}}
{{- $now := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" (include "tidemark.fullname" .)) -}}
{{- $ids := list -}}
{{- if $now -}}
{{- range $i := untilStep (int .Values.broker.replicas) (int $now.spec.replicas) 1 -}}
{{- $ids = append $ids (add $i (int $.Values.broker.nodeIdOffset)) -}}
{{- end -}}
{{- end -}}
{{- join " " $ids -}}
{{- end -}}

{{/* Pod of a job with one shell script, which connects to the cluster or not: dict "root" . "name" "check" "script" "..." "connects" true "volumes" (list) "mounts" (list) */}}
{{- define "tidemark.job" -}}
{{- $values := .root.Values -}}
{{- $secured := and $values.tls.enabled .connects -}}
backoffLimit: 2
template:
  metadata:
    labels:
      {{- include "tidemark.labels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    securityContext:
      {{- toYaml $values.podSecurityContext | nindent 6 }}
    {{- with $values.image.pullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: {{ .name }}
        image: {{ include "tidemark.image" .root }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: ["/bin/sh", "-euc"]
        args:
          - |
            {{- if $secured }}
            {{ include "tidemark.connectLine" .root }}
            {{- end }}
            {{- .script | nindent 12 }}
        env:
          - name: TIDEMARK_BOOTSTRAP_SERVER
            value: {{ include "tidemark.commandServer" .root }}
          {{- if $secured }}
          - name: TIDEMARK_COMMAND_CONFIG
            value: /tmp/client.properties
          {{- end }}
        securityContext:
          {{- toYaml $values.securityContext | nindent 10 }}
        resources:
          requests: {cpu: 100m, memory: 128Mi}
          limits: {memory: 512Mi}
        volumeMounts:
          - name: tmp
            mountPath: /tmp
          {{- if $secured }}
          {{- include "tidemark.tlsMounts" (dict "root" .root "role" "job") | nindent 10 }}
          {{- end }}
          {{- with .mounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      - name: tmp
        emptyDir:
          sizeLimit: 256Mi
      {{- if $secured }}
      {{- include "tidemark.tlsVolumes" (dict "root" .root "role" "job") | nindent 6 }}
      {{- end }}
      {{- with .volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* What clients in the cluster are given as bootstrap.servers. */}}
{{- define "tidemark.bootstrap" -}}
{{ include "tidemark.bootstrapHost" . }}:{{ int .Values.broker.port }}
{{- end -}}

{{- define "tidemark.bootstrapHost" -}}
{{ include "tidemark.fullname" . }}-bootstrap.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
