{{/* One egress rule to a destination {cidrs, ports, namespaceSelector, podSelector}: {to, protocol}. */}}
{{- define "wsdata.egress" -}}
{{- $to := .to -}}
- {{ if or $to.cidrs $to.namespaceSelector $to.podSelector -}}
  to:
    {{- range $to.cidrs }}
    - ipBlock:
        cidr: {{ . }}
    {{- end }}
    {{- if or $to.namespaceSelector $to.podSelector }}
    {{- $peer := dict }}
    {{- with $to.namespaceSelector }}{{ $_ := set $peer "namespaceSelector" . }}{{ end }}
    {{- with $to.podSelector }}{{ $_ := set $peer "podSelector" . }}{{ end }}
    - {{ toYaml $peer | nindent 6 | trim }}
    {{- end }}
  {{ end -}}
  ports:
    {{- range $to.ports }}
    - protocol: TCP
      port: {{ int64 . }}
    {{- end }}
{{- end -}}

{{- define "wsdata.dnsEgress" -}}
- to:
    - namespaceSelector:
        {{- toYaml .Values.networkPolicy.dns.namespaceSelector | nindent 8 }}
      podSelector:
        {{- toYaml .Values.networkPolicy.dns.podSelector | nindent 8 }}
  ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end -}}

{{/* The object store as an identity reaches it: {root, identity}. */}}
{{- define "wsdata.storeEgress" -}}
{{- $shared := .root.Values.networkPolicy.objectStore -}}
{{ include "wsdata.egress" (dict "to" $shared) }}
{{- if ne .identity "decode" }}
{{- with .root.Values.vault.objectStore }}
{{ include "wsdata.egress" (dict "to" (merge (deepCopy .) (dict "ports" $shared.ports))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Ingress from Prometheus to one port. */}}
{{- define "wsdata.scrapeIngress" -}}
- from:
    - {{ toYaml .root.Values.networkPolicy.prometheus | nindent 6 | trim }}
  ports:
    - protocol: TCP
      port: {{ int64 .port }}
{{- end -}}

{{/* Pods of the pipeline that are no workers: Dagster's, run pods, jobs of this chart. */}}
{{- define "wsdata.orchestratorSelector" -}}
matchLabels:
  wsdata/identity: pipeline
matchExpressions:
  - key: app.kubernetes.io/name
    operator: NotIn
    values: [wsdata-worker]
{{- end -}}
