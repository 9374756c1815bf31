{{/* dagster.yaml, workspace.yaml and the files of WSDATA_HOME. */}}

{{- define "wsdata.instance" -}}
{{- $values := .Values -}}
{{- $daemon := $values.dagsterDaemon -}}
{{- $database := dict
  "username" $values.postgresql.postgresqlUsername
  "password" (dict "env" "DAGSTER_PG_PASSWORD")
  "hostname" $values.postgresql.postgresqlHost
  "db_name" $values.postgresql.postgresqlDatabase
  "port" (int64 $values.postgresql.service.port)
  "params" $values.postgresql.postgresqlParams
  "scheme" $values.postgresql.postgresqlScheme -}}
{{- $made := dict "storage" (dict "postgres" (dict "postgres_db" $database)) -}}
{{- $_ := set $made "run_launcher" (include "wsdata.runLauncher" . | fromYaml) -}}
{{- $_ := set $made "compute_logs" (include "wsdata.computeLogs" . | fromYaml) -}}
{{- if $daemon.enabled -}}
{{- if $daemon.runCoordinator.enabled -}}
{{- $coordinator := include "wsdata.snake" $daemon.runCoordinator.config.queuedRunCoordinator | fromYaml -}}
{{- $_ := set $made "run_coordinator" (dict "module" "dagster.core.run_coordinator" "class" $daemon.runCoordinator.type "config" $coordinator) -}}
{{- end -}}
{{- range $key := list "runMonitoring" "runRetries" -}}
{{- $section := get $daemon $key -}}
{{- if $section.enabled -}}
{{- $_ := set $made (snakecase $key) (include "wsdata.snake" $section | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "sensors" "schedules" "backfills" -}}
{{- $_ := set $made $key (include "wsdata.snake" (get $daemon $key) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- if $values.concurrency.enabled -}}
{{- $_ := set $made "concurrency" (dict
  "runs" (include "wsdata.snake" $values.concurrency.runs | fromYaml)
  "pools" (include "wsdata.snake" $values.concurrency.pools | fromYaml)) -}}
{{- end -}}
{{- with $values.pythonLogs -}}
{{- $_ := set $made "python_logs" (include "wsdata.snake" . | fromYaml) -}}
{{- end -}}
{{- if $values.retention.enabled -}}
{{- $retention := dict -}}
{{- range $key := list "schedule" "sensor" "autoMaterialize" -}}
{{- with get $values.retention $key -}}
{{- $_ := set $retention (snakecase $key) (include "wsdata.snake" . | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $made "retention" $retention -}}
{{- end -}}
{{- $_ := set $made "freshness" $values.freshness -}}
{{- $_ := set $made "telemetry" $values.telemetry -}}
{{- $_ := set $made "nux" (dict "enabled" false) -}}
{{- toYaml (mergeOverwrite $made (deepCopy $values.additionalInstanceConfig)) -}}
{{- end -}}

{{- define "wsdata.computeLogs" -}}
{{- $manager := .Values.computeLogManager -}}
{{- if eq $manager.type "S3ComputeLogManager" -}}
module: dagster_aws.s3.compute_log_manager
class: S3ComputeLogManager
config:
  {{- include "wsdata.snake" $manager.config.s3ComputeLogManager | nindent 2 }}
{{- else if eq $manager.type "CustomComputeLogManager" -}}
{{- toYaml $manager.config.customComputeLogManager }}
{{- else -}}
module: dagster.core.storage.noop_compute_log_manager
class: NoOpComputeLogManager
{{- end -}}
{{- end -}}

{{/* K8sRunLauncher: run pods are pods of the pipeline like all others. */}}
{{- define "wsdata.runLauncher" -}}
{{- $values := .Values -}}
{{- $launcher := $values.runLauncher.config.k8sRunLauncher -}}
module: dagster_k8s
class: {{ $values.runLauncher.type }}
config:
  job_namespace: {{ .Release.Namespace }}
  load_incluster_config: {{ $launcher.loadInclusterConfig }}
  {{- with $launcher.kubeconfigFile }}
  kubeconfig_file: {{ . }}
  {{- end }}
  {{- with $launcher.image }}
  job_image: {{ include "wsdata.image" (dict "root" $ "image" .) }}
  {{- end }}
  image_pull_policy: {{ default $values.images.pullPolicy $launcher.imagePullPolicy }}
  {{- with $values.imagePullSecrets }}
  image_pull_secrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  service_account_name: {{ include "wsdata.pipelineAccount" . }}
  instance_config_map: {{ include "wsdata.fullname" . }}-instance
  dagster_home: {{ $values.global.dagsterHome }}
  postgres_password_secret: {{ $values.global.postgresqlSecretName }}
  env_config_maps:
    {{- range $launcher.envConfigMaps }}
    - {{ .name }}
    {{- else }} []
    {{- end }}
  env_secrets:
    {{- $secrets := list }}
    {{- with $values.wsdata.s3.secretName }}{{ $secrets = append $secrets . }}{{ end }}
    {{- range $launcher.envSecrets }}{{ $secrets = append $secrets .name }}{{ end }}
    {{- toYaml $secrets | nindent 4 }}
  env_vars:
    {{- toYaml $launcher.envVars | nindent 4 }}
  volumes:
    {{- include "wsdata.volumes" . | nindent 4 }}
    {{- with $launcher.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volume_mounts:
    {{- include "wsdata.volumeMounts" . | nindent 4 }}
    {{- with $launcher.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    app.kubernetes.io/part-of: wsdata
    wsdata/identity: pipeline
    wsdata/role: run
    {{- with $launcher.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml $launcher.resources | nindent 4 }}
  {{- with $launcher.schedulerName }}
  scheduler_name: {{ . }}
  {{- end }}
  fail_pod_on_run_failure: {{ $launcher.failPodOnRunFailure }}
  security_context:
    {{- include "wsdata.securityContext" $launcher.securityContext | nindent 4 }}
  run_k8s_config:
    {{- include "wsdata.runK8sConfig" . | nindent 4 }}
{{- end -}}

{{- define "wsdata.runK8sConfig" -}}
{{- $stated := deepCopy (default dict .Values.runLauncher.config.k8sRunLauncher.runK8sConfig) -}}
{{- $container := default dict $stated.containerConfig -}}
{{- $env := concat (include "wsdata.plainEnv" . | fromYamlArray) (include "wsdata.ledgerEnv" . | fromYamlArray) (default list $container.env) -}}
{{- $own := dict
  "containerConfig" (dict "workingDir" .Values.wsdata.code)
  "podSpecConfig" (dict "securityContext" (include "wsdata.podSecurityContext" dict | fromYaml)) -}}
{{- $made := mergeOverwrite $own $stated -}}
{{- $_ := set $made.containerConfig "env" $env -}}
{{- include "wsdata.snake" $made -}}
{{- end -}}

{{- define "wsdata.codeName" -}}
{{- printf "%s-code-%s" (include "wsdata.fullname" .root) .deployment.name -}}
{{- end -}}

{{/* What a code location is where it does not say: the list in values.yaml is replaced as a whole. */}}
{{- define "wsdata.codeDefaults" -}}
image:
  repository: wsdata-orchestrator
codeServerArgs: ["-f", "definitions.py", "-d", "."]
port: 3030
resources:
  requests: {cpu: 500m, memory: 2Gi}
  limits: {memory: 4Gi}
readinessProbe: {periodSeconds: 20, timeoutSeconds: 10, failureThreshold: 3}
startupProbe: {periodSeconds: 5, timeoutSeconds: 10, failureThreshold: 60}
{{- end -}}

{{- define "wsdata.workspace" -}}
load_from:
{{- $locations := index .Values "dagster-user-deployments" }}
{{- if and $locations.enabled $locations.deployments }}
{{- range $locations.deployments }}
  - grpc_server:
      host: {{ include "wsdata.codeName" (dict "root" $ "deployment" .) }}
      port: {{ default 3030 .port }}
      location_name: {{ .name }}
{{- end }}
{{- else }} []
{{- end }}
{{- end -}}

{{/* The files of WSDATA_HOME, by name. */}}
{{- define "wsdata.deploymentFiles" -}}
{{- $wsdata := .Values.wsdata -}}
{{- $secrets := list -}}
{{- range .Values.imagePullSecrets -}}{{- $secrets = append $secrets .name -}}{{- end -}}
{{- $cluster := dict
  "namespace" .Release.Namespace
  "image_registry" (trimSuffix "/" .Values.images.registry)
  "image_tag" (default .Chart.AppVersion .Values.images.tag)
  "image_pull_policy" .Values.images.pullPolicy
  "image_pull_secrets" $secrets
  "webserver_url" (include "wsdata.webserverUrl" .)
  "runs_at_once" (int64 $wsdata.runsAtOnce)
  "steps_at_once" (int64 $wsdata.executor.maxConcurrent)
  "poll_s" (float64 $wsdata.pollSeconds) -}}
{{- with .Values.runLauncher.config.k8sRunLauncher.kubeconfigFile -}}
{{- $_ := set $cluster "kubeconfig" . -}}
{{- end -}}
{{- $deployment := dict
  "bundle" "kubernetes"
  "store" $wsdata.store
  "vault" $wsdata.vault
  "landing" $wsdata.landing
  "catalog" (include "wsdata.catalogUrl" .)
  "catalog_password_env" "WSDATA_CATALOG_PASSWORD"
  "carve_salt" $wsdata.carveSalt
  "carve_share" (float64 $wsdata.carveShare)
  "safety_lists" $wsdata.safetyLists.path
  "safety_max_distance" (int64 $wsdata.safetyLists.maxDistance)
  "sandbox_minimum" $wsdata.sandboxMinimum
  "sandbox_stall_s" (float64 $wsdata.sandboxStallSeconds)
  "decoder" $wsdata.decoder
  "encoder" $wsdata.encoder
  "num_threads" (int64 $wsdata.numThreads)
  "asks_blobs" $wsdata.asksBlobs
  "trainers_read_transcodes" .Values.trainer.readsTranscodes
  "kubernetes" $cluster -}}
deployment.toml: |
  {{- toToml $deployment | trim | nindent 2 }}
pools.json: |
  {{- toPrettyJson .Values.pools | nindent 2 }}
{{- with $wsdata.operatingRecipe }}
operating.toml: |
  {{- . | nindent 2 }}
{{- end }}
{{- if not $wsdata.evalList.existingConfigMap }}
eval_list.txt: |
  # Asset ids that belong to the vault. Append-only.
  {{- range $wsdata.evalList.assetIds }}
  {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What a code location hands to the run pods of its jobs. */}}
{{- define "wsdata.containerContext" -}}
{{- $made := dict -}}
{{- with .env -}}
{{- $_ := set $made "env" . -}}
{{- end -}}
{{- range $key := list "envConfigMaps" "envSecrets" -}}
{{- $names := list -}}
{{- range default list (get $ $key) -}}{{- $names = append $names .name -}}{{- end -}}
{{- with $names -}}{{- $_ := set $made (snakecase $key) . -}}{{- end -}}
{{- end -}}
{{- range $key := list "volumes" "volumeMounts" "labels" -}}
{{- with get $ $key -}}{{- $_ := set $made (snakecase $key) . -}}{{- end -}}
{{- end -}}
{{- if $made -}}{{- toYaml $made -}}{{- end -}}
{{- end -}}
