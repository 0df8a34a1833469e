{{- /* The release's name, shortened to what a label may hold. */ -}}
{{- define "brisk.name" -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "brisk.selector" -}}
app.kubernetes.io/name: brisk
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "brisk.labels" -}}
{{ include "brisk.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* Whether servers of this release may run at once: not with a cache that one pod has. */ -}}
{{- define "brisk.isAlone" -}}
{{- if and .Values.cache.claim (ne .Values.cache.accessMode "ReadWriteMany") }}true{{ end -}}
{{- end -}}

{{- /* A value as a quoted text. Helm has numbers of a file as floats, and large ones as 1e+06. */ -}}
{{- define "brisk.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (floor .) -}}{{ int64 . | quote }}{{- else -}}{{ . | quote }}{{- end -}}
{{- else -}}{{ . | quote }}{{- end -}}
{{- end -}}
