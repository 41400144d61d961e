{{/* What a schema cannot say about the job itself; the words are those of the job model's own checks. One line a mistake. */}}
{{- define "frostline.mistakes-job" -}}
{{- $training := .Values.training -}}
{{- $placement := .Values.placement -}}
{{- $epochs := kindIs "invalid" $training.epochs | ternary "unset" $training.epochs -}}
{{- $steps := kindIs "invalid" $training.steps | ternary "unset" $training.steps -}}
{{- if eq (eq (toString $epochs) "unset") (eq (toString $steps) "unset") }}
- training.epochs is {{ $epochs }} and training.steps is {{ $steps }}: give exactly one of them
{{- end }}
{{- $batch := int64 $training.batch_size -}}
{{- $autoMicro := eq (toString $training.micro_batch_size) "auto" -}}
{{- $autoLeaves := eq (toString $training.reduction_leaves) "auto" -}}
{{- $micro := $autoMicro | ternary 1 $training.micro_batch_size | int64 -}}
{{- $leaves := $autoLeaves | ternary 1024 $training.reduction_leaves | int64 -}}
{{- $count := div (sub (add $batch $micro) 1) $micro -}}
{{- $power := 1 -}}
{{- range until 11 -}}
{{- if lt $power $leaves -}}{{- $power = int64 (mul $power 2) -}}{{- end -}}
{{- end -}}
{{- if ne (int64 $power) $leaves }}
- training.reduction_leaves is {{ $leaves }}: it must be a power of two; {{ $power }} is the next one
{{- end }}
{{- if lt $batch $micro }}
- training.batch_size is {{ $batch }} and training.micro_batch_size is {{ $micro }}: a step is at least one micro-batch; lower micro_batch_size
{{- else if and (not $autoLeaves) (lt $count $leaves) }}
- training.reduction_leaves is {{ $leaves }}: batch_size {{ $batch }} / micro_batch_size {{ $micro }} are {{ $count }} micro-batches, fewer than leaves; lower reduction_leaves to a power of two <= {{ $count }}
{{- end }}
{{- if and (int64 $training.loss_chunk_tokens) (ne .Values.task.kind "language_modeling") }}
- training.loss_chunk_tokens is {{ int64 $training.loss_chunk_tokens }} and task.kind is {{ .Values.task.kind }}, which has no loss a token: set it to 0
{{- end }}
{{- $cells := 1 -}}
{{- if kindIs "slice" $training.token_cells -}}{{- $cells = len $training.token_cells -}}{{- else -}}{{- $cells = int $training.token_cells -}}{{- end -}}
{{- if and (gt $cells 1) (ne .Values.task.kind "language_modeling") }}
- training.token_cells makes {{ $cells }} cells and task.kind is {{ .Values.task.kind }}, which is not per token: set it to 1
{{- end }}
{{- if gt (int ($placement.slices | default 1)) $cells }}
- placement.slices is {{ int $placement.slices }} and training.token_cells makes {{ $cells }} cells, of which a slice holds at least one: lower it or raise token_cells
{{- end }}
{{- if and .Values.model.path .Values.model.hub }}
- model.path is {{ .Values.model.path | quote }} and model.hub is {{ .Values.model.hub | quote }}: give one of them
{{- end }}
{{- $workers := int64 $placement.workers -}}
{{- $pp := int64 ($placement.pp_degree | default 1) -}}
{{- $dp := int64 ($placement.dp_degree | default 1) -}}
{{- if gt (int64 $placement.min_workers) $workers }}
- placement.min_workers is {{ int64 $placement.min_workers }} and placement.workers is {{ $workers }}: the run would wait for ever; lower min_workers or raise workers
{{- end }}
{{- if gt (mul $pp $dp) $workers }}
- placement.pp_degree x placement.dp_degree is {{ mul $pp $dp }} and placement.workers is {{ $workers }}: raise workers or lower a degree
{{- end }}
{{- if gt $dp $leaves }}
- placement.dp_degree is {{ $dp }} and training.reduction_leaves is {{ $leaves }}: raise reduction_leaves (and, where needed, lower micro_batch_size)
{{- end }}
{{- $per := int64 $placement.workers_per_pod -}}
{{- $pods := div (sub (add $workers (int64 $placement.spare_workers) $per) 1) $per -}}
{{- range $index, $fault := .Values.faults }}
{{- if has $fault.kind (list "kill_node" "cut_node" "kill_redis" "kill_cache_server") }}
- faults.{{ $index }}.kind is {{ $fault.kind }}: a cluster breaks by itself; planned faults of nodes and of services are for frostline run, remove it
{{- else if and (ne $fault.kind "kill_controller") (ge (int64 ($fault.worker | default 0)) $pods) }}
- faults.{{ $index }}.worker is {{ int64 $fault.worker }}: the job's pods are 0 to {{ sub $pods 1 }}
{{- end }}
{{- end }}
{{- end }}
