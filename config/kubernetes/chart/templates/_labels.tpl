{{- define "rollcall.selector" -}}
app.kubernetes.io/name: rollcall
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rollcall.labels" -}}
{{ include "rollcall.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "rollcall.config" -}}
{{ .Values.config | default (.Files.Get "rollcall.toml") }}
{{- end }}
