{{/* Name of every object: the release's, with the chart's unless it is in it. */}}
{{- define "zagros-operator.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "zagros-operator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "zagros-operator.name" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{/* Labels that select the pods. */}}
{{- define "zagros-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "zagros-operator.labels" -}}
{{ include "zagros-operator.selector" . }}
{{ include "zagros-operator.origin" . }}
{{- end }}

{{/* Labels that say where an object comes from. */}}
{{- define "zagros-operator.origin" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "zagros-operator.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What a pod of the operator may: the restricted profile of Pod Security. */}}
{{- define "zagros-operator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "zagros-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Rights on the jobs and what they are made of. */}}
{{- define "zagros-operator.rules" -}}
# Jobs are read and deleted (after their time to live); specs are the user's, finalizers and status the operator's.
- apiGroups: [zagros.dev]
  resources: [hybridjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [zagros.dev]
  resources: [hybridjobs/status]
  verbs: [update, patch]
# Owners with blockOwnerDeletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [zagros.dev]
  resources: [hybridjobs/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, deletecollection]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, deletecollection]
# Pods are never made or entered by the operator. A worker's on a node that is not heard of is given up: it counts as
# failed, and goes. No rule names secrets.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch, deletecollection]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, deletecollection]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Of other operators; without them the rules do nothing.
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch, deletecollection]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch, delete]
{{- end }}

{{/* Rights on the lease that decides who leads. */}}
{{- define "zagros-operator.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [zagros-operator]
  verbs: [get, update]
{{- end }}

{{- define "zagros-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "zagros-operator.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
