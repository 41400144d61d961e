{{/* The release's name is the run's. */}}
{{- define "frostline.labels" -}}
app.kubernetes.io/name: frostline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "frostline.metadata" -}}
name: {{ .root.Release.Name }}-{{ .role }}
labels:
  {{- include "frostline.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "frostline.image" -}}
{{- $image := .pods.image | default dict -}}
{{- $repository := $image.repository | default (printf "ghcr.io/frostline/%s" .role) -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- if hasPrefix "sha256:" $tag }}{{ $repository }}@{{ $tag }}{{ else }}{{ $repository }}:{{ $tag }}{{ end -}}
{{- end }}

{{/* What every pod has: who it is, where it may run, what it may not do. */}}
{{- define "frostline.pod" -}}
automountServiceAccountToken: false
serviceAccountName: {{ .root.Release.Name }}-{{ .role }}
{{- with .root.Values.kubernetes.image_pull_secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .pods.node_selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.priority_class }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "frostline.container" -}}
image: {{ include "frostline.image" . | quote }}
imagePullPolicy: {{ (.pods.image | default dict).pull_policy | default "IfNotPresent" }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- if or .pods.requests .pods.limits }}
resources:
  {{- with .pods.requests }}
  requests:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .pods.limits }}
  limits:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
