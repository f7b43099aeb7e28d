{{- define "bstar.labels" -}}
app.kubernetes.io/name: bstar
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bstar.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "bstar.rights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What clients and workers connect to: the primary first, in the same order for all. */}}
{{- define "bstar.endpoints" -}}
{{- $name := .Release.Name -}}
tcp://{{ $name }}-0.{{ $name }}:5001,tcp://{{ $name }}-1.{{ $name }}:5001
{{- end }}

{{/* The configuration of one node: (list . ORDINAL). The first is the primary. */}}
{{- define "bstar.config" -}}
{{- $root := index . 0 -}}
{{- $name := $root.Release.Name -}}
{{- $is_primary := eq (index . 1) 0 -}}
{{- $peer := printf "%s-%s.%s" $name (ternary "1" "0" $is_primary) $name -}}
{{- $config := include "bstar.settings" (dict "root" $root "name" $name "primary" $is_primary "peer" $peer) | fromYaml -}}
{{- mergeOverwrite $config $root.Values.config | toYaml }}
{{- end }}

{{- define "bstar.settings" -}}
pair: {{ .name }}
role: {{ ternary "primary" "backup" .primary }}
timing:
  # What refuses a connection may be the platform and not the peer: only silence counts.
  expire_on_refused: false
endpoints:
  clients: tcp://*:5001
  state: tcp://*:5003
  peer_state: tcp://{{ .peer }}:5003
  {{- if .root.Values.arbiter.enabled }}
  arbiter: tcp://{{ .name }}-arbiter:5010
  {{- end }}
{{- if .root.Values.keys.secret }}
security: {key: /keys/own.key, principals: /public/principals.yaml}
{{- else }}
insecure: true
{{- end }}
# Without TLS and tokens; the network policy says who reaches it.
http: {bind: "0.0.0.0:9401", allow_remote: true}
log: {format: json}
state_dir: /var/lib/bstar
{{- if .root.Values.journal.enabled }}
journal: {directory: /var/lib/bstar/journal}
{{- end }}
{{- if .root.Values.store.enabled }}
store:
  directory: /var/lib/bstar/store
  link: tcp://{{ ternary "*" .peer .primary }}:5005
{{- end }}
{{- end }}

{{/* What the pods of nodes and arbiter have alike. */}}
{{- define "bstar.pod" -}}
automountServiceAccountToken: false
# Services of the namespace would become variables BSTAR_…, which bstar takes for settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
affinity:
  podAntiAffinity:
    {{- if eq .Values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ .Values.topologyKey }}
        labelSelector:
          matchLabels: {{ include "bstar.labels" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: {{ .Values.topologyKey }}
          labelSelector:
            matchLabels: {{ include "bstar.labels" . | nindent 14 }}
    {{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- if .Values.keys.secret }}
initContainers:
  # A secret's files belong to root and their group may read them. A node wants a key that only it can read.
  - name: keys
    {{- include "bstar.image" . | nindent 4 }}
    env: {{ include "bstar.pod-name" . | nindent 6 }}
    command: [install, -m, "0400", /secret/$(POD_NAME).key, /keys/own.key]
    securityContext: {{ include "bstar.rights" . | nindent 6 }}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
    volumeMounts:
      - {name: secret, mountPath: /secret, readOnly: true}
      - {name: keys, mountPath: /keys}
{{- end }}
{{- end }}

{{- define "bstar.pod-name" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}

{{- define "bstar.key-mounts" -}}
{{- if .Values.keys.secret }}
- {name: keys, mountPath: /keys, readOnly: true}
# Of the secret itself: a change of the list reaches the node without a restart.
- {name: public, mountPath: /public, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "bstar.key-volumes" -}}
{{- if .Values.keys.secret }}
- name: secret
  secret: {secretName: {{ .Values.keys.secret }}}
- name: public
  secret:
    secretName: {{ .Values.keys.secret }}
    items:
      - {key: principals.yaml, path: principals.yaml}
      - {key: {{ .Release.Name }}-0.pub, path: {{ .Release.Name }}-0.pub}
      - {key: {{ .Release.Name }}-1.pub, path: {{ .Release.Name }}-1.pub}
- name: keys
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
# The control socket is there, too.
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end }}

{{/* /healthz never depends on the peer, so no probe restarts both nodes because one is down. /readyz does not
     depend on the role: a node that stands by is ready. */}}
{{- define "bstar.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 3
{{- end }}

{{/* A claim: (list . NAME SIZE). */}}
{{- define "bstar.claim" -}}
- metadata: {name: {{ index . 1 }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with (index . 0).Values.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ index . 2 }}}}
{{- end }}
