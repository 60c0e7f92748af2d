{{- define "korvet.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels of a selector: (list . COMPONENT). */}}
{{- define "korvet.selector" -}}
app.kubernetes.io/name: korvet
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "korvet.labels" -}}
{{ include "korvet.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
helm.sh/chart: korvet-{{ (index . 0).Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "korvet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The ports of clients by the name of their listener. */}}
{{- define "korvet.ports" -}}
kafka: 9092
{{- if .Values.external.enabled }}
external: 9094
{{- end }}
{{- end }}

{{/* Settings of every broker, as JSON; those of .Values.config replace the chart's. */}}
{{- define "korvet.settings" -}}
{{- $own := dict
  "listeners" "INTERNAL://0.0.0.0:9092"
  "listener.security.protocol.map" (printf "INTERNAL:%s" .Values.listener.protocol)
  "ops.listen" "0.0.0.0:9093"
  "log.format" "json"
  "num.partitions" 6
  "workers" (int .Values.workers)
  "drain.delay.ms" 5000 }}
{{- if .Values.external.enabled }}
{{- $_ := set $own "listeners" (printf "%s,EXTERNAL://0.0.0.0:9094" $own.listeners) }}
{{- $map := "listener.security.protocol.map" }}
{{- $_ := set $own $map (printf "%s,EXTERNAL:%s" (index $own $map) .Values.external.protocol) }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $_ := set $own "ssl.keystore.location" "/etc/korvet-tls/keystore.pem" }}
{{- end }}
{{- if .Values.sasl.secret }}
{{- $_ := set $own "sasl.enabled.mechanisms" "PLAIN,SCRAM-SHA-512" }}
{{- $_ := set $own "sasl.plain.users.file" "/etc/korvet-sasl/users.toml" }}
{{- end }}
{{- merge (deepCopy .Values.config) $own | toJson }}
{{- end }}

{{/* A setting's value in TOML. Helm reads whole numbers as floats. */}}
{{- define "korvet.value" -}}
{{ if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . | toJson }}{{ end }}
{{- end }}

{{/* What has to be set, in one line each. */}}
{{- define "korvet.check" -}}
{{- $redis := list .Values.redis.url .Values.redis.secret (.Values.redis.trial.enabled | ternary "trial" "") | compact }}
{{- if ne (len $redis) 1 }}{{ fail "set exactly one of redis.url, redis.secret and redis.trial.enabled" }}{{ end }}
{{- $protocols := list .Values.listener.protocol (.Values.external.enabled | ternary .Values.external.protocol "") | join " " }}
{{- if and (contains "SSL" $protocols) (not .Values.tls.secret) }}{{ fail "a listener with SSL or SASL_SSL needs tls.secret" }}{{ end }}
{{- if and .Values.external.enabled (not .Values.external.address) }}{{ fail "external.enabled needs external.address" }}{{ end }}
{{- end }}
