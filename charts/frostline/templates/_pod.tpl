{{/* What every pod has: who it is, where it may run, what it may not do.
     tolerations: further ones. bound: whether it mounts the storage, which may lie on one node. */}}
{{- define "frostline.pod" -}}
serviceAccountName: {{ .root.Release.Name }}-{{ .role }}
automountServiceAccountToken: false
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
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- $selector := deepCopy .pods.node_selector }}
{{- if and .bound .root.Values.kubernetes.storage.node }}
{{- $_ := set $selector "kubernetes.io/hostname" .root.Values.kubernetes.storage.node }}
{{- end }}
{{- with $selector }}
nodeSelector:
  {{- range $name, $value := . }}
  {{ $name }}: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- with concat .pods.tolerations (.tolerations | default list) }}
tolerations:
  {{- range . }}
  - key: {{ .key | default "" | quote }}
    operator: {{ .operator | default "Equal" }}
    {{- with .value }}
    value: {{ . | quote }}
    {{- end }}
    {{- with .effect }}
    effect: {{ . }}
    {{- end }}
    {{- if not (kindIs "invalid" .tolerationSeconds) }}
    tolerationSeconds: {{ int64 .tolerationSeconds }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with .pods.priority_class }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* What every container has. limits, requests: further resources. claim: name of a claim of its pod, for devices. */}}
{{- define "frostline.container" -}}
name: {{ .role }}
image: {{ include "frostline.image" . | quote }}
imagePullPolicy: {{ .pods.image.pull_policy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- with (.pods.capabilities | default dict).add }}
    add: {{ toJson . }}
    {{- end }}
{{- with .pods.env_from_secrets }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- $requests := merge (dict) .pods.requests (.requests | default dict) }}
{{- $limits := merge (dict) .pods.limits (.limits | default dict) }}
{{- if or $requests $limits .claim }}
resources:
  {{- with .claim }}
  claims:
    - name: {{ . }}
  {{- end }}
  {{- with $requests }}
  requests:
    {{- include "frostline.quantities" . | trim | nindent 4 }}
  {{- end }}
  {{- with $limits }}
  limits:
    {{- include "frostline.quantities" . | trim | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Variables by which every program of ours knows the run and itself; the user's last. */}}
{{- define "frostline.env" -}}
- name: FROSTLINE_RELEASE
  value: {{ .root.Release.Name }}
- name: FROSTLINE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: FROSTLINE_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: FROSTLINE_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: FROSTLINE_AUDIENCE
  value: {{ include "frostline.audience" .root }}
{{- if not (hasKey .pods.env "HOME") }}
- name: HOME
  value: /tmp
{{- end }}
{{- if .root.Values.kubernetes.auth.token_review }}
- name: FROSTLINE_TOKEN_REVIEW
  value: "true"
{{- end }}
{{- if .root.Values.kubernetes.auth.tls_secret }}
- name: FROSTLINE_TLS_DIR
  value: /etc/frostline/tls
{{- end }}
{{- include "frostline.env-given" . }}
{{- end }}

{{/* Variables that the user gives. */}}
{{- define "frostline.env-given" -}}
{{- range $name, $value := .pods.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $from := .pods.secret_env }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.secret }}
      key: {{ $from.key | quote }}
{{- end }}
{{- end }}

{{/* Variables that tell NCCL of the network; what is not given is the library's choice. */}}
{{- define "frostline.nccl" -}}
{{- $given := dict "NCCL_SOCKET_IFNAME" .socket_interface "NCCL_IB_HCA" .hca "NCCL_DEBUG" .debug }}
{{- if not (kindIs "invalid" .gid_index) }}
{{- $_ := set $given "NCCL_IB_GID_INDEX" (toString (int64 .gid_index)) }}
{{- end }}
{{- range $name, $value := $given }}
{{- with $value }}
- name: {{ $name }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "frostline.cache-secret" -}}
{{- with .Values.kubernetes.cache_secret }}
- name: FROSTLINE_CACHE_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: secret
{{- end }}
{{- end }}

{{- define "frostline.redis-password" -}}
{{- with .Values.kubernetes.redis.password_secret }}
- name: FROSTLINE_REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: password
{{- end }}
{{- end }}

{{/* Volumes of every program of ours, and where they are mounted. api: talks to the API server. identity: has a token of the run. */}}
{{- define "frostline.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .api }}
- name: api
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: {{ int64 .root.Values.kubernetes.auth.token_seconds }}
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}
{{- if .identity }}
- name: identity
  projected:
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ include "frostline.audience" .root }}
          expirationSeconds: {{ int64 .root.Values.kubernetes.auth.token_seconds }}
{{- end }}
{{- if .bound }}
- name: storage
  persistentVolumeClaim:
    claimName: {{ .root.Values.kubernetes.storage.claim | default (printf "%s-storage" .root.Release.Name) }}
{{- end }}
{{- with .root.Values.kubernetes.auth.tls_secret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "frostline.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .api }}
- name: api
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}
{{- if .identity }}
- name: identity
  mountPath: /var/run/frostline
  readOnly: true
{{- end }}
{{- if .bound }}
- name: storage
  mountPath: /frostline/storage
{{- end }}
{{- if .root.Values.kubernetes.auth.tls_secret }}
- name: tls
  mountPath: /etc/frostline/tls
  readOnly: true
{{- end }}
{{- end }}
