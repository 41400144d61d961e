{{/* The resolved job, as JSON that any YAML reader takes for the same thing.
     A bare `off` reached us as false, since Helm's YAML has more booleans than ours. A float without a dot (5e-05) is text to a
     YAML 1.1 reader, so it gets one; a number ends its line, text ends in a quote, so that no text is touched. */}}
{{- define "frostline.job" -}}
{{- $job := deepCopy (omit .Values "global") -}}
{{- $_ := set $job "name" .Release.Name -}}
{{- /* Variables of pods are nothing that the run follows: what people put there stays out of the ConfigMap and the run directory. */ -}}
{{- range $role := list "controller" "trainer" "cache_server" "redis" -}}
{{- $_ := set (index $job.kubernetes $role) "env" dict -}}
{{- end -}}
{{- if kindIs "bool" $job.data.augmentation.mode -}}
{{- $_ := set $job.data.augmentation "mode" "off" -}}
{{- end -}}
{{- if hasKey $job.freeze.rails "false" -}}
{{- $_ := set $job.freeze.rails "off" (index $job.freeze.rails "false") -}}
{{- $_ := unset $job.freeze.rails "false" -}}
{{- end -}}
{{- regexReplaceAll "(?m)(^\\s*|: )(-?[0-9]+)(e[-+]?[0-9]+,?)$" (toPrettyJson $job) "${1}${2}.0${3}" -}}
{{- end }}
