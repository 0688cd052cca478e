{{/* Name of every object: the release's name, followed by the chart's unless the release's contains it. */}}
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

{{/* Rights of the operator's pod: the restricted profile of Pod Security. */}}
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

{{/* Rights on jobs and on their objects. */}}
{{- define "zagros-operator.rules" -}}
# The operator reads jobs and deletes them (after their time to live). It writes finalizers and status, never a spec.
- apiGroups: [zagros.dev]
  resources: [hybridjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [zagros.dev]
  resources: [hybridjobs/status]
  verbs: [update, patch]
# Needed for owners with blockOwnerDeletion if OwnerReferencesPermissionEnforcement is on.
- apiGroups: [zagros.dev]
  resources: [hybridjobs/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, deletecollection]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, deletecollection]
# The operator never makes or enters a pod. It gives up a worker's pod on a node that does not report: the pod is marked
# as failed and deleted.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
# Whether the namespace of a job is being deleted.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch, deletecollection]
# The operator makes the Secret of each run and reads its token. It lists and watches none, changes none and deletes none.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [deletecollection]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, deletecollection]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, deletecollection]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, deletecollection]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Kinds of other operators. Without those operators the rules have no effect.
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch, deletecollection]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch, deletecollection]
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
