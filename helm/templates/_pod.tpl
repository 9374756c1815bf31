{{/* What all pods of the pipeline share. */}}

{{- define "wsdata.podSecurityContext" -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $own (deepCopy (default dict .))) -}}
{{- end -}}

{{- define "wsdata.securityContext" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "runAsNonRoot" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $own (deepCopy (default dict .))) -}}
{{- end -}}

{{/* Environment. The ledger's password is for who opens the ledger: {root, ledger: bool}. */}}
{{- define "wsdata.ledgerEnv" -}}
- name: WSDATA_CATALOG_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.wsdata.catalog.passwordSecret.name }}
      key: {{ .Values.wsdata.catalog.passwordSecret.key }}
{{- end -}}

{{- define "wsdata.plainEnv" -}}
- name: WSDATA_IDENTITY
  value: pipeline
- name: WSDATA_HOME
  value: {{ .Values.wsdata.home }}
- name: PYTHONPATH
  value: {{ .Values.wsdata.code }}
- name: HOME
  value: /tmp
{{- with .Values.wsdata.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "wsdata.env" -}}
{{ include "wsdata.plainEnv" .root }}
- name: DAGSTER_HOME
  value: {{ .root.Values.global.dagsterHome }}
- name: DAGSTER_PG_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.global.postgresqlSecretName }}
      key: postgresql-password
{{- if .ledger }}
{{ include "wsdata.ledgerEnv" .root }}
{{- end }}
{{- end -}}

{{- define "wsdata.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.wsdata.tmpSizeLimit }}
- name: dagster-home
  emptyDir: {}
- name: dagster-instance
  configMap:
    name: {{ include "wsdata.fullname" . }}-instance
- name: wsdata-home
  projected:
    sources:
      - configMap:
          name: {{ include "wsdata.fullname" . }}-deployment
      {{- with .Values.wsdata.evalList.existingConfigMap }}
      - configMap:
          name: {{ . }}
          items:
            - key: eval_list.txt
              path: eval_list.txt
      {{- end }}
{{- with .Values.wsdata.safetyLists }}
{{- if .existingClaim }}
- name: safety-lists
  persistentVolumeClaim:
    claimName: {{ .existingClaim }}
    readOnly: true
{{- else if .existingSecret }}
- name: safety-lists
  secret:
    secretName: {{ .existingSecret }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "wsdata.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: dagster-home
  mountPath: {{ .Values.global.dagsterHome }}
- name: dagster-instance
  mountPath: {{ .Values.global.dagsterHome }}/dagster.yaml
  subPath: dagster.yaml
  readOnly: true
- name: wsdata-home
  mountPath: {{ .Values.wsdata.home }}
  readOnly: true
{{- with .Values.wsdata.safetyLists }}
{{- if or .existingClaim .existingSecret }}
- name: safety-lists
  mountPath: {{ .path }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "wsdata.checksums" -}}
checksum/instance: {{ include "wsdata.instance" . | sha256sum }}
checksum/deployment: {{ include "wsdata.deploymentFiles" . | sha256sum }}
{{- end -}}

{{/*
A pod template of the pipeline: {root, component, values, command, ...}.
  values      the component's values: env, resources, nodeSelector and so on
  ledger      whether it opens the ledger
  token       whether it speaks to the Kubernetes API
  workspace   whether it reads workspace.yaml
  ports, probes, restartPolicy, podAnnotations   as in Kubernetes
*/}}
{{- define "wsdata.podTemplate" -}}
{{- $root := .root -}}
{{- $values := .values -}}
metadata:
  labels:
    {{- include "wsdata.labels" (dict "root" $root "component" .component) | nindent 4 }}
    wsdata/identity: pipeline
    {{- with $values.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "wsdata.checksums" $root | nindent 4 }}
    {{- if .workspace }}
    checksum/workspace: {{ include "wsdata.workspace" $root | sha256sum }}
    {{- end }}
    {{- with .podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $values.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "wsdata.pipelineAccount" $root }}
  automountServiceAccountToken: {{ default false .token }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  securityContext:
    {{- include "wsdata.podSecurityContext" $values.podSecurityContext | nindent 4 }}
  containers:
    - name: {{ .component }}
      image: {{ include "wsdata.image" (dict "root" $root "image" (default $root.Values.dagsterDaemon.image $values.image)) | quote }}
      imagePullPolicy: {{ default $root.Values.images.pullPolicy (dig "image" "pullPolicy" "" $values) }}
      workingDir: {{ $root.Values.wsdata.code }}
      command:
        {{- toYaml .command | nindent 8 }}
      env:
        {{- include "wsdata.env" (dict "root" $root "ledger" .ledger) | nindent 8 }}
        {{- with .env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $envFrom := list }}
      {{- with $root.Values.wsdata.s3.secretName }}
      {{- $envFrom = append $envFrom (dict "secretRef" (dict "name" .)) }}
      {{- end }}
      {{- range default list $values.envConfigMaps }}
      {{- $envFrom = append $envFrom (dict "configMapRef" .) }}
      {{- end }}
      {{- range default list $values.envSecrets }}
      {{- $envFrom = append $envFrom (dict "secretRef" .) }}
      {{- end }}
      {{- with $envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .probes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "wsdata.securityContext" $values.securityContext | nindent 8 }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts:
        {{- include "wsdata.volumeMounts" $root | nindent 8 }}
        {{- if .workspace }}
        - name: dagster-workspace
          mountPath: /dagster-workspace
          readOnly: true
        {{- end }}
        {{- with $values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "wsdata.volumes" $root | nindent 4 }}
    {{- if .workspace }}
    - name: dagster-workspace
      configMap:
        name: {{ include "wsdata.fullname" $root }}-workspace
    {{- end }}
    {{- with $values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "wsdata.scheduling" $values | nindent 2 }}
{{- end -}}

{{/* Where a pod may run and whom it makes room for. */}}
{{- define "wsdata.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- end -}}

{{/* Probes of one component as YAML: {values, action}; a probe without an action gets `action`. */}}
{{- define "wsdata.probes" -}}
{{- $made := dict -}}
{{- $action := .action -}}
{{- $values := .values -}}
{{- range $kind := list "readinessProbe" "livenessProbe" "startupProbe" -}}
{{- $probe := get $values $kind -}}
{{- if and $probe (ne (toString (get $probe "enabled")) "false") -}}
{{- $probe = omit $probe "enabled" -}}
{{- if not (or $probe.httpGet $probe.exec $probe.tcpSocket $probe.grpc) -}}
{{- $probe = merge $probe $action -}}
{{- end -}}
{{- $_ := set $made $kind $probe -}}
{{- end -}}
{{- end -}}
{{- if $made -}}{{- toYaml $made -}}{{- end -}}
{{- end -}}
