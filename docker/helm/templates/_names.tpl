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
