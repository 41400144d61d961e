{{/* What cannot be on a cluster: shapes of pods, volumes and addresses. One line a mistake. */}}
{{- define "frostline.mistakes-cluster" -}}
{{- $pods := .Values.kubernetes -}}
{{- $per := int64 .Values.placement.workers_per_pod -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" .Release.Name) }}
- the release's name is {{ .Release.Name | quote }}: it is the run's, and that of Services; 1 to 40 of a-z, 0-9 and -, beginning with a letter
{{- end }}
{{- $gpus := int64 $pods.trainer.gpus -}}
{{- if and $gpus (ne $gpus $per) }}
- kubernetes.trainer.gpus is {{ $gpus }} and placement.workers_per_pod is {{ $per }}: a worker has one GPU; make them equal
{{- end }}
{{- if and $pods.trainer.gpu_device_class (not $gpus) }}
- kubernetes.trainer.gpu_device_class is {{ $pods.trainer.gpu_device_class }} and kubernetes.trainer.gpus is 0: set gpus to placement.workers_per_pod
{{- end }}
{{- if and $pods.trainer.gpu_device_class (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) }}
- kubernetes.trainer.gpu_device_class is {{ $pods.trainer.gpu_device_class }} and the cluster is Kubernetes {{ .Capabilities.KubeVersion.Version }}: claims of devices need 1.34; leave it empty and use the device plugin
{{- end }}
{{- range $field, $name := dict "socket_interface" "NCCL_SOCKET_IFNAME" "hca" "NCCL_IB_HCA" "gid_index" "NCCL_IB_GID_INDEX" "debug" "NCCL_DEBUG" }}
{{- $value := index $pods.trainer.nccl $field }}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) "") (hasKey $pods.trainer.env $name) }}
- kubernetes.trainer.nccl.{{ $field }} sets {{ $name }}, which is in kubernetes.trainer.env too; remove one of them
{{- end }}
{{- end }}
{{- if and $gpus (eq .Values.training.device "cpu") }}
- kubernetes.trainer.gpus is {{ $gpus }} and training.device is cpu: set gpus to 0 or device to auto
{{- end }}
{{- if and (not $gpus) (eq .Values.training.device "cuda") }}
- training.device is cuda and kubernetes.trainer.gpus is 0: set gpus to placement.workers_per_pod
{{- end }}
{{- range list "requests" "limits" }}
{{- if hasKey (index $pods.trainer .) "nvidia.com/gpu" }}
- kubernetes.trainer.{{ . }} holds nvidia.com/gpu {{ index $pods.trainer . "nvidia.com/gpu" }}: say it as kubernetes.trainer.gpus
{{- end }}
{{- end }}
{{- range $role := list "controller" "trainer" "cache_server" "redis" }}
{{- range $name, $value := (index $pods $role).env }}
{{- if hasPrefix "FROSTLINE_" $name }}
- kubernetes.{{ $role }}.env.{{ $name }} is {{ $value | quote }}: variables that begin with FROSTLINE_ are the chart's; remove it
{{- end }}
{{- if regexMatch "(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$" $name }}
- kubernetes.{{ $role }}.env.{{ $name }} is by its name a secret: put it into a Secret and name that in kubernetes.{{ $role }}.secret_env
{{- end }}
{{- if hasKey (index $pods $role).secret_env $name }}
- kubernetes.{{ $role }}: {{ $name }} is in env and in secret_env; remove one of them
{{- end }}
{{- end }}
{{- range $name, $from := (index $pods $role).secret_env }}
{{- if hasPrefix "FROSTLINE_" $name }}
- kubernetes.{{ $role }}.secret_env.{{ $name }}: variables that begin with FROSTLINE_ are the chart's; remove it
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.cache.addresses .Values.elastic.cache (ne .Values.cache.use "never") (not .Values.cache.trusted) (not $pods.cache_secret) }}
- cache.addresses is {{ join ", " .Values.cache.addresses }}: others may write there, and no secret signs this run's values; set kubernetes.cache_secret, or cache.trusted: true
{{- end }}
{{- $lease := $pods.lease -}}
{{- if not (and (lt (float64 $lease.retry_seconds) (float64 $lease.renew_seconds)) (lt (float64 $lease.renew_seconds) (float64 $lease.duration_seconds))) }}
- kubernetes.lease: retry_seconds {{ $lease.retry_seconds }}, renew_seconds {{ $lease.renew_seconds }} and duration_seconds {{ $lease.duration_seconds }} must rise in this order
{{- end }}
{{- $label := .Values.placement.failure_domain_label -}}
{{- if ne $label "kubernetes.io/hostname" }}
- placement.failure_domain_label is {{ $label }}: other labels of nodes are not read, which would take a cluster role; use kubernetes.io/hostname
{{- end }}
{{- $bytes := int64 (include "frostline.shard-bytes" .) -}}
{{- if and (not .Values.cache.addresses) (lt $bytes 1048576) }}
- cache.memory_bytes is {{ int64 .Values.cache.memory_bytes }}: {{ $bytes }} bytes for each of {{ int64 .Values.cache.shards }} shards; lower cache.shards or raise memory_bytes to 1 MiB a shard at least
{{- end }}
{{- range .Values.cache.addresses }}
{{- if not (regexMatch "^([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$" .) }}
- cache.addresses holds {{ . | quote }}: write host:port
{{- end }}
{{- end }}
{{- end }}

{{/* Where files lie: the storage, volumes, and paths of the job that no pod would have. */}}
{{- define "frostline.mistakes-storage" -}}
{{- $storage := .Values.kubernetes.storage -}}
{{- if and (eq $storage.access_mode "ReadWriteOnce") (not $storage.node) }}
- kubernetes.storage.access_mode is ReadWriteOnce: pods on more than one node cannot mount it; use ReadWriteMany, or bind the run to one node by its host name in kubernetes.storage.node
{{- end }}
{{- with .Values.checkpoint.uri }}
{{- if or (contains "://" .) (and (hasPrefix "/" .) (not (hasPrefix "/frostline/storage/" .))) }}
- checkpoint.uri is {{ . | quote }}: it would be lost with its pod; leave it out, or give a folder below /frostline/storage or one relative to the run's
{{- end }}
{{- end }}
{{- range list (list "model.path" .Values.model.path) (list "data.path" .Values.data.path) (list "data.test_path" .Values.data.test_path) (list "freeze.policy.replay_of" .Values.freeze.policy.replay_of) }}
{{- $path := last . }}
{{- if and $path (not (hasPrefix "/" $path)) }}
- {{ first . }} is {{ $path | quote }}: a pod knows no folder of the job file; mount a volume (kubernetes.volumes) and give the path there
{{- end }}
{{- end }}
{{- $names := list -}}
{{- $paths := list -}}
{{- range .Values.kubernetes.volumes }}
{{- if has .name $names }}
- kubernetes.volumes: name {{ .name }} is there twice; each needs its own
{{- end }}
{{- $path := .mount_path }}
{{- if has $path $paths }}
- kubernetes.volumes: mount_path {{ $path }} is there twice; each needs its own
{{- end }}
{{- if ne (len .source) 1 }}
- kubernetes.volumes.{{ .name }}.source has {{ len .source }} keys: give exactly one, such as persistentVolumeClaim
{{- end }}
{{- range list "/frostline" "/tmp" "/dev" "/var/run" "/run" "/proc" "/sys" "/etc/frostline" }}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) }}
- kubernetes.volumes.mount_path is {{ $path }}: it lies in {{ . }}, which is the run's; choose another
{{- end }}
{{- end }}
{{- $names = append $names .name }}
{{- $paths = append $paths $path }}
{{- end }}
{{- end }}
