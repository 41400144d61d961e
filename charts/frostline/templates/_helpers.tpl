{{/* Helpers take a dict: root (the chart's dot), role (controller, trainer, cache-server, redis, check), pods (values of that role). */}}

{{- define "frostline.labels" -}}
app.kubernetes.io/name: frostline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "frostline.metadata" -}}
name: {{ .root.Release.Name }}-{{ .role }}
labels:
  {{- include "frostline.object-labels" . | nindent 2 }}
{{- end }}

{{- define "frostline.object-labels" -}}
{{ include "frostline.labels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Metadata of a pod template: no version in it, so that a new chart alone replaces no pod. more: further labels. */}}
{{- define "frostline.pod-metadata" -}}
labels:
  {{- include "frostline.labels" . | nindent 2 }}
  {{- range $name, $value := merge (dict) (.more | default dict) (omit .pods.labels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") }}
  {{ $name }}: {{ $value | quote }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .role }}
  {{- range $name, $value := .pods.annotations }}
  {{ $name }}: {{ $value | quote }}
  {{- end }}
{{- end }}

{{- define "frostline.image" -}}
{{- $repository := .pods.image.repository | default (printf "ghcr.io/frostline/%s" .role) -}}
{{- $tag := .pods.image.tag | default .root.Chart.AppVersion -}}
{{- with .pods.image.digest }}{{ $tag = printf "%s@%s" (splitList "@" $tag | first) . }}{{ end -}}
{{- printf "%s%s%s" $repository (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end }}

{{/* The release's name as kubelets write it in the variables of its Services. */}}
{{- define "frostline.variables" -}}
{{- .Release.Name | upper | replace "-" "_" -}}
{{- end }}

{{/* Whom tokens of this run are for. */}}
{{- define "frostline.audience" -}}
frostline/{{ .Release.Namespace }}/{{ .Release.Name }}
{{- end }}

{{/* Addresses of the Redis shards, in hashing order. */}}
{{- define "frostline.shards" -}}
{{- if .Values.cache.addresses -}}
{{- join "," .Values.cache.addresses -}}
{{- else -}}
{{- $addresses := list -}}
{{- range $index := until (int .Values.cache.shards) -}}
{{- $addresses = append $addresses (printf "$(%s_REDIS_%d_SERVICE_HOST):6379" (include "frostline.variables" $) $index) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}
{{- end }}

{{/* Bytes a shard may hold. */}}
{{- define "frostline.shard-bytes" -}}
{{- div (int64 .Values.cache.memory_bytes) (int64 .Values.cache.shards) -}}
{{- end }}

{{/* A map of resources: quantities as text, since Helm knows only floats. */}}
{{- define "frostline.quantities" -}}
{{- range $name, $value := . }}
{{- if kindIs "string" $value }}
{{ $name }}: {{ $value | quote }}
{{- else if eq (float64 $value) (floor $value) }}
{{ $name }}: {{ printf "%d" (int64 $value) | quote }}
{{- else }}
{{ $name }}: {{ printf "%g" $value | quote }}
{{- end }}
{{- end }}
{{- end }}
