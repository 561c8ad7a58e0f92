{{/* Common name of the nodes' certificate, by which nodes know each other. */}}
{{- define "tidemark.nodeName" -}}
{{- default (printf "%s-node" (include "tidemark.fullname" .)) .Values.tls.nodeName -}}
{{- end -}}

{{/* Secret with the nodes' certificate. */}}
{{- define "tidemark.tlsSecret" -}}
{{- default (printf "%s-tls" (include "tidemark.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{/* The listener of clients in the cluster. */}}
{{- define "tidemark.clientListener" -}}
{{- if .Values.tls.enabled -}}CLIENTS{{- else -}}PLAINTEXT{{- end -}}
{{- end -}}

{{/* Settings of a role's listeners, certificates and rights: dict "root" . "role" "broker" */}}
{{- define "tidemark.securityProperties" -}}
{{- $values := .root.Values -}}
{{- $clients := $values.tls.clients -}}
{{- $protocols := list "CONTROLLER:SSL" -}}
{{- $listeners := list -}}
{{- if eq .role "broker" -}}
{{- $protocols = concat $protocols (list "INTERNAL:SSL" (printf "CLIENTS:%s" $clients.protocol)) -}}
{{- $listeners = list "clients" -}}
{{- if $values.broker.external.enabled -}}
{{- $protocols = append $protocols (printf "EXTERNAL:%s" $clients.protocol) -}}
{{- $listeners = append $listeners "external" -}}
{{- end -}}
{{- end -}}
listener.security.protocol.map={{ join "," $protocols }}
ssl.keystore.location=/etc/tidemark-tls/tls.crt,/etc/tidemark-tls/tls.key
ssl.truststore.location=/etc/tidemark-tls/ca.crt
ssl.principal.mapping.rules={{ $values.tls.principalMappingRules }}
listener.name.controller.ssl.client.auth=required
{{- if eq .role "broker" }}
inter.broker.listener.name=INTERNAL
listener.name.internal.ssl.client.auth=required
{{- end }}
{{- range $listener := $listeners }}
{{- if eq $clients.clientAuth "required" }}
listener.name.{{ $listener }}.ssl.client.auth=required
{{- end }}
{{- if $clients.existingSecret }}
listener.name.{{ $listener }}.ssl.keystore.location=/etc/tidemark-tls-clients/tls.crt,/etc/tidemark-tls-clients/tls.key
{{- if eq $clients.clientAuth "required" }}
listener.name.{{ $listener }}.ssl.truststore.location=/etc/tidemark-tls-clients/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- if $values.acls.enabled }}
authorizer.class.name=StandardAuthorizer
{{- $principals := list (printf "User:%s" (include "tidemark.nodeName" .root)) }}
{{- range $values.acls.superUsers }}
{{- $principals = append $principals (printf "User:%s" .) }}
{{- end }}
super.users={{ join ";" $principals }}
{{- end }}
{{- end -}}

{{/* Settings of the command line in pods and jobs: it connects as a node. */}}
{{- define "tidemark.clientProperties" -}}
security.protocol=SSL
ssl.keystore.location=/etc/tidemark-tls/tls.crt,/etc/tidemark-tls/tls.key
ssl.truststore.location=/etc/tidemark-tls/ca.crt
{{- end -}}

{{/* Where the command line in pods and jobs connects. */}}
{{- define "tidemark.commandServer" -}}
{{- $port := ternary .Values.tls.interBrokerPort .Values.broker.port .Values.tls.enabled -}}
{{ include "tidemark.bootstrapHost" . }}:{{ int $port }}
{{- end -}}

{{/* What is checked in a start: files of a pod's Secrets. Volumes of nodes: dict "root" . "role" "broker" */}}
{{- define "tidemark.tlsVolumes" -}}
{{- if .root.Values.tls.enabled -}}
- name: tls
  secret:
    secretName: {{ include "tidemark.tlsSecret" .root }}
{{- if and (eq .role "broker") .root.Values.tls.clients.existingSecret }}
- name: tls-clients
  secret:
    secretName: {{ .root.Values.tls.clients.existingSecret }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tidemark.tlsMounts" -}}
{{- if .root.Values.tls.enabled -}}
- name: tls
  mountPath: /etc/tidemark-tls
  readOnly: true
{{- if and (eq .role "broker") .root.Values.tls.clients.existingSecret }}
- name: tls-clients
  mountPath: /etc/tidemark-tls-clients
  readOnly: true
{{- end }}
{{- end -}}
{{- end -}}

{{/* A line of a script that makes the file TIDEMARK_COMMAND_CONFIG. */}}
{{- define "tidemark.connectLine" -}}
{{- if .Values.tls.enabled -}}
printf '%s\n' {{ range splitList "\n" (include "tidemark.clientProperties" .) }}{{ squote . }} {{ end }}> /tmp/client.properties
{{- end -}}
{{- end -}}

{{/* Lines of a script that set passwords and ACLs. */}}
{{- define "tidemark.accessScript" -}}
{{- range $i, $user := .Values.users }}
repeat tidemark users set-password {{ squote $user.name }} --password-file /etc/tidemark-users/{{ $i }}/password
{{- end }}
{{- if .Values.acls.enabled }}
{{- with .Values.acls }}
{{- if or .entries .prune }}
mkdir -p /tmp/acls
echo '[]' > /tmp/acls/none.json
{{- range $i, $entry := .entries }}
tidemark acls add --dry-run --json
{{- range .topics }} --topic {{ squote . }}{{ end }}
{{- range .groups }} --group {{ squote . }}{{ end }}
{{- range .transactionalIds }} --transactional-id {{ squote . }}{{ end }}
{{- if .cluster }} --cluster{{ end }}
{{- if .prefixed }} --prefixed{{ end }}
{{- if .producer }} --producer{{ end }}
{{- if .consumer }} --consumer{{ end }}
{{- range .operations }} --operation {{ . }}{{ end }}
{{- range .hosts }} --host {{ squote . }}{{ end }}
{{- if .deny }} --deny-principal{{ else }} --allow-principal{{ end }} {{ squote (printf "User:%s" .principal) }} > /tmp/acls/{{ $i }}.json
{{- end }}
repeat tidemark acls apply /tmp/acls/*.json{{ if .prune }} --prune{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Volumes with the passwords of users, each alone. */}}
{{- define "tidemark.userVolumes" -}}
{{- range $i, $user := .Values.users }}
- name: user-{{ $i }}
  secret:
    secretName: {{ $user.secret }}
    items:
      - {key: {{ default "password" $user.key | quote }}, path: password}
{{- end }}
{{- end -}}

{{- define "tidemark.userMounts" -}}
{{- range $i, $user := .Values.users }}
- name: user-{{ $i }}
  mountPath: /etc/tidemark-users/{{ $i }}
  readOnly: true
{{- end }}
{{- end -}}

{{/* The probes of a pod: kubelet asks by gRPC, or, since that knows no TLS, at the port of metrics:
     dict "root" . "port" 9092 "service" "liveness" "path" "/livez" */}}
{{- define "tidemark.probe" -}}
{{- if .root.Values.tls.enabled -}}
httpGet:
  path: {{ .path }}
  port: metrics
{{- else -}}
grpc:
  port: {{ int .port }}
  {{- with .service }}
  service: {{ . }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* Refuses values of certificates, users and ACLs that can not work. */}}
{{- define "tidemark.validateSecurity" -}}
{{- $tls := .Values.tls -}}
{{- $now := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" (include "tidemark.fullname" .)) -}}
{{- if $now -}}
{{- $secured := false -}}
{{- range $now.spec.template.spec.volumes -}}
{{- if eq .name "tls" -}}{{- $secured = true -}}{{- end -}}
{{- end -}}
{{- if ne $secured $tls.enabled -}}
{{- fail (printf "tls.enabled is %t in the cluster and can not become %t by an upgrade: nodes with and without TLS do not reach each other. `helm uninstall %s` (volumes stay), then install with tls.enabled=%t" $secured $tls.enabled .Release.Name $tls.enabled) -}}
{{- end -}}
{{- end -}}
{{- if not $tls.enabled -}}
{{- if .Values.acls.enabled -}}
{{- fail "acls.enabled needs tls.enabled: without certificates everybody could pose as a node" -}}
{{- end -}}
{{- if .Values.users -}}
{{- fail "users need tls.enabled and tls.clients.protocol=SASL_SSL: they log in by passwords" -}}
{{- end -}}
{{- else -}}
{{- include "tidemark.validateTls" . -}}
{{- end -}}
{{- if and (or .Values.acls.entries .Values.acls.superUsers .Values.acls.prune) (not .Values.acls.enabled) -}}
{{- fail "acls.entries, acls.superUsers and acls.prune need acls.enabled" -}}
{{- end -}}
{{- range .Values.acls.entries -}}
{{- if not (or .topics .groups .transactionalIds .cluster) -}}
{{- fail (printf "acls.entries: that of %s names no resource: topics, groups, transactionalIds or cluster" .principal) -}}
{{- end -}}
{{- if not (or .operations .producer .consumer) -}}
{{- fail (printf "acls.entries: that of %s allows nothing: operations, producer or consumer" .principal) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.validateTls" -}}
{{- $tls := .Values.tls -}}
{{- if and $tls.existingSecret $tls.certManager.enabled -}}
{{- fail "tls.existingSecret and tls.certManager.enabled exclude each other: one of both makes the certificate" -}}
{{- end -}}
{{- if not (or $tls.existingSecret $tls.certManager.enabled) -}}
{{- fail (printf "tls.enabled needs tls.existingSecret, a Secret with tls.crt, tls.key and ca.crt of common name %s, or tls.certManager.enabled" (include "tidemark.nodeName" .)) -}}
{{- end -}}
{{- if not .Values.metrics.enabled -}}
{{- fail "tls.enabled needs metrics.enabled: the probes ask at its port, since those of gRPC know no TLS" -}}
{{- end -}}
{{- $others := list (int .Values.broker.port) (int .Values.metrics.port) -}}
{{- if .Values.broker.external.enabled -}}
{{- $others = append $others (int .Values.broker.external.port) -}}
{{- end -}}
{{- if has (int $tls.interBrokerPort) $others -}}
{{- fail (printf "tls.interBrokerPort=%d is in use by another listener" (int $tls.interBrokerPort)) -}}
{{- end -}}
{{- if and (eq $tls.clients.protocol "SASL_SSL") (eq $tls.clients.clientAuth "required") -}}
{{- fail "tls.clients.clientAuth=required goes with tls.clients.protocol=SSL: with SASL_SSL users log in" -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.users -}}
{{- if ne $tls.clients.protocol "SASL_SSL" -}}
{{- fail "users need tls.clients.protocol=SASL_SSL: they log in by passwords" -}}
{{- end -}}
{{- if eq .name (include "tidemark.nodeName" $) -}}
{{- fail (printf "users: %s is the name of nodes, who may do everything" .name) -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail (printf "users: %s is named twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- if and .Values.acls.enabled (eq $tls.clients.protocol "SSL") (eq $tls.clients.clientAuth "none") -}}
{{- fail "acls.enabled: clients would all be User:ANONYMOUS; set tls.clients.protocol=SASL_SSL or tls.clients.clientAuth=required" -}}
{{- end -}}
{{- with .Values.broker.external -}}
{{- if and .enabled (not .host) $tls.certManager.enabled (not $tls.certManager.ipAddresses) (not $tls.clients.existingSecret) -}}
{{- fail "broker.external without a host: clients reach machines by their addresses, so the certificate needs tls.certManager.ipAddresses" -}}
{{- end -}}
{{- end -}}
{{- end -}}
