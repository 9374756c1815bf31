{{/* Names, labels, images, addresses. */}}

{{- define "wsdata.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "wsdata.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "wsdata.labels" -}}
{{ include "wsdata.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: wsdata
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* An image reference: {root, image: {repository, tag}}. A repository with a slash is complete. */}}
{{- define "wsdata.image" -}}
{{- $shared := .root.Values.images -}}
{{- $tag := default (default .root.Chart.AppVersion $shared.tag) .image.tag -}}
{{- $repository := .image.repository -}}
{{- if and $shared.registry (not (contains "/" $repository)) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $shared.registry) $repository -}}
{{- end -}}
{{- printf "%s:%s" $repository $tag -}}
{{- end -}}

{{- define "wsdata.pipelineAccount" -}}
{{- default .Values.serviceAccount.name .Values.global.serviceAccountName -}}
{{- end -}}

{{- define "wsdata.webserverName" -}}
{{- printf "%s-%s" (include "wsdata.fullname" .) .Values.dagsterWebserver.nameOverride -}}
{{- end -}}

{{- define "wsdata.webserverUrl" -}}
{{- $webserver := .Values.dagsterWebserver -}}
{{- printf "http://%s:%d%s" (include "wsdata.webserverName" .) (int64 $webserver.service.port) (default "" $webserver.pathPrefix) -}}
{{- end -}}

{{- define "wsdata.catalogUrl" -}}
{{- $catalog := .Values.wsdata.catalog -}}
{{- $host := default .Values.postgresql.postgresqlHost $catalog.host -}}
{{- $url := printf "postgresql+psycopg2://%s@%s:%d/%s" (urlquery $catalog.username) $host (int64 $catalog.port) $catalog.database -}}
{{- range $n, $key := keys $catalog.params | sortAlpha -}}
{{- $url = printf "%s%s%s=%s" $url (ternary "?" "&" (eq $n 0)) $key (get $catalog.params $key | toString | urlquery) -}}
{{- end -}}
{{- $url -}}
{{- end -}}

{{/* A map with its keys in snake case and what is null left out, as YAML. */}}
{{- define "wsdata.snake" -}}
{{- $made := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $made (snakecase $key) $value -}}{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}

{{/* Renders nothing; refuses values that the schema cannot judge. */}}
{{- define "wsdata.check" -}}
{{- $values := .Values -}}
{{- range $key := list "store" "vault" "landing" -}}
{{- $_ := required (printf "wsdata.%s is not set: name it as s3://bucket/prefix" $key) (get $values.wsdata $key) -}}
{{- end -}}
{{- if and $values.wsdata.store (eq $values.wsdata.store $values.wsdata.vault) -}}
{{- fail (printf "wsdata.vault is wsdata.store (%s): the vault needs a bucket and credentials of its own" $values.wsdata.vault) -}}
{{- end -}}
{{- $_ := required "postgresql.postgresqlHost is not set: name the Postgres server of Dagster's storage" $values.postgresql.postgresqlHost -}}
{{- include "wsdata.checkIdentities" . -}}
{{- $store := $values.networkPolicy.objectStore -}}
{{- if and $values.networkPolicy.enabled (not (or $store.cidrs $store.namespaceSelector $store.podSelector)) -}}
{{- fail "networkPolicy.objectStore names nobody: give cidrs of the S3 endpoint or selectors of one in the cluster, or workers reach nothing; networkPolicy.enabled: false goes without policies" -}}
{{- end -}}
{{- $namespace := $values.runLauncher.config.k8sRunLauncher.jobNamespace -}}
{{- if and $namespace (ne $namespace .Release.Namespace) -}}
{{- fail (printf "runLauncher.config.k8sRunLauncher.jobNamespace is %q, the release's namespace %q: run pods need the accounts, ConfigMaps and policies of the release; install it into %q instead" $namespace .Release.Namespace $namespace) -}}
{{- end -}}
{{- if and $values.generatePostgresqlPasswordSecret (not $values.postgresql.postgresqlPassword) -}}
{{- fail "generatePostgresqlPasswordSecret is on, but postgresql.postgresqlPassword is empty" -}}
{{- end -}}
{{- if and $values.vllm.enabled (not $values.vllm.model.volume) -}}
{{- fail "vllm.model.volume is not set: name a volume that holds the model, as {persistentVolumeClaim: {claimName: models}}" -}}
{{- end -}}
{{- end -}}

{{/* The vault's account and secret belong to pool vault; secrets of databases to no pool. */}}
{{- define "wsdata.checkIdentities" -}}
{{- $accounts := dict "pipeline" (include "wsdata.pipelineAccount" .) "decode" .Values.decode.serviceAccount.name "vault" .Values.vault.serviceAccount.name -}}
{{- if ne 3 (len (values $accounts | uniq)) -}}
{{- fail (printf "serviceAccount, decode and vault share an account (%s): identities are to be kept apart" (values $accounts | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $databases := list .Values.global.postgresqlSecretName .Values.wsdata.catalog.passwordSecret.name -}}
{{- range $name, $pool := .Values.pools -}}
{{- if ne (eq $name "vault") (eq $pool.identity "vault") -}}
{{- fail (printf "pools.%s.identity is %q: identity vault is for pool vault, and for it alone" $name $pool.identity) -}}
{{- end -}}
{{- if ne $pool.serviceAccountName (get $accounts $pool.identity) -}}
{{- fail (printf "pools.%s.serviceAccountName is %q, but the account of identity %s is %q" $name $pool.serviceAccountName $pool.identity (get $accounts $pool.identity)) -}}
{{- end -}}
{{- range $secret := $pool.envSecrets -}}
{{- if has $secret $databases -}}
{{- fail (printf "pools.%s.envSecrets names %q, a database's password: workers hold none" $name $secret) -}}
{{- end -}}
{{- if and (ne $name "vault") (has $secret $.Values.pools.vault.envSecrets) -}}
{{- fail (printf "pools.%s.envSecrets names %q, which pool vault holds: the vault's credentials are for pool vault alone" $name $secret) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
