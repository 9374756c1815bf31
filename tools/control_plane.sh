#!/usr/bin/env bash
# A real Kubernetes control plane on 127.0.0.1, without nodes: for `make conformance`.
#
#   tools/control_plane.sh build          fetch sources and compile: 15-60 minutes, 5 GB; once
#   tools/control_plane.sh start FOLDER   etcd, API server, controllers, scheduler; prints a kubeconfig
#   tools/control_plane.sh stop FOLDER
#
# Kubernetes 1.20 is what Debian 12 carries as source; docs/conformance.md says what it cannot show.
# Nothing is installed and no root is needed: packages are unpacked under $WSDATA_CONTROL_PLANE.
set -euo pipefail

home=${WSDATA_CONTROL_PLANE:-$HOME/.cache/wsdata/control-plane}
programs=(kube-apiserver kube-controller-manager kube-scheduler)
go=golang-1.19

die() { echo "control_plane.sh: $*" >&2; exit 1; }

# -- build

private_apt() {  # apt with its own lists and with sources, beside the system's
  mkdir -p "$home"/apt/{lists/partial,archives/partial,sources}
  [ -e /etc/apt/sources.list.d/debian.sources ] || [ -e /etc/apt/sources.list ] \
    || die "no apt sources: this needs Debian 12"
  for file in /etc/apt/sources.list.d/debian.sources; do
    [ ! -e "$file" ] || sed 's/^Types:.*/Types: deb deb-src/' "$file" > "$home/apt/sources/debian.sources"
  done
  if [ -s /etc/apt/sources.list ]; then
    sed -n 's/^deb \(.*\)/deb \1\ndeb-src \1/p' /etc/apt/sources.list > "$home/apt/sources/debian.list"
  fi
  cat > "$home/apt/apt.conf" <<CONF
Dir::State "$home/apt";
Dir::State::lists "$home/apt/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$home/apt";
Dir::Etc::sourcelist "-";
Dir::Etc::sourceparts "$home/apt/sources";
APT::Sandbox::User "";
CONF
  export APT_CONFIG=$home/apt/apt.conf
  apt-get update -qq
}

fetch() {
  private_apt
  mkdir -p "$home/packages" "$home/root" "$home/gopath/src/k8s.io/kubernetes"
  cd "$home/packages"
  apt-get download -qq "$go-go" "$go-src" etcd-server \
    || die "no $go or etcd-server: this needs Debian 12"
  apt-get source -qq --download-only kubernetes
  local archive=(kubernetes_*1.20*.orig.tar.gz)
  [ -e "${archive[0]}" ] || die "another version than 1.20 was fetched: $(ls); newer ones lack the server"
  for package in ./*.deb; do dpkg -x "$package" "$home/root"; done
  tar xf "${archive[0]}" -C "$home/gopath/src/k8s.io/kubernetes" --strip-components=1
}

go_environment() {
  export GOROOT=$home/root/usr/lib/go-${go#golang-} GOPATH=$home/gopath GOCACHE=$home/gocache
  export GO111MODULE=off CGO_ENABLED=0
  export PATH=$GOROOT/bin:$home/bin:$PATH
}

generate_openapi() {  # the one generated file that the sources leave out
  local folders
  go build -o "$home/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  folders=$(grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=' pkg cmd plugin staging/src/k8s.io \
    | grep -v -e /code-generator/ -e /sample-apiserver/ -e /testdata/ \
    | xargs -n1 dirname | LC_ALL=C sort -u \
    | sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' \
          -e 's#^\(pkg\|cmd\|plugin\)/#k8s.io/kubernetes/\1/#' | paste -sd,)
  openapi-gen --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi \
    -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt \
    -r "$home/violations.report"
}

build() {
  mkdir -p "$home/bin"
  [ -e "$home/packages/.fetched" ] || { fetch && touch "$home/packages/.fetched"; }
  go_environment
  cd "$home/gopath/src/k8s.io/kubernetes"
  [ -e pkg/generated/openapi/zz_generated.openapi.go ] || generate_openapi
  local flags="-s -w"
  for at in component-base/version client-go/pkg/version; do  # the latter is what /version tells
    at=k8s.io/kubernetes/vendor/k8s.io/$at
    flags+=" -X $at.gitVersion=v1.20.2 -X $at.gitMajor=1 -X $at.gitMinor=20"
  done
  for program in "${programs[@]}"; do
    [ -x "$home/bin/$program" ] && continue
    echo "compiling $program" >&2
    nice -n 19 go build -ldflags "$flags" -o "$home/bin/$program" "./cmd/$program"
  done
  ln -sf "$home/root/usr/bin/etcd" "$home/bin/etcd"
}

# -- start and stop

free_ports() { python3 - <<'PYTHON'
import socket
held = [socket.socket() for _ in range(3)]
for each in held:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in held))
PYTHON
}

run() {  # run NAME ARGUMENTS: in the background, with its log and its process id
  local name=$1; shift
  setsid "$home/bin/$name" "$@" > "$folder/$name.log" 2>&1 < /dev/null &
  echo $! > "$folder/$name.pid"
}

await() {  # await WHAT COMMAND
  local what=$1; shift
  for _ in $(seq 600); do
    "$@" > /dev/null 2>&1 && return
    sleep 0.2
  done
  stop
  die "$what is not up after two minutes: see $folder/*.log"
}

write_kubeconfig() {
  cat > "$folder/kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: wsdata
clusters:
  - name: wsdata
    cluster: {server: "https://127.0.0.1:$secure", certificate-authority: "$folder/certs/apiserver.crt"}
users:
  - name: admin
    user: {token: "$token"}
contexts:
  - name: wsdata
    context: {cluster: wsdata, user: admin}
YAML
}

start() {
  for program in etcd "${programs[@]}"; do
    [ -x "$home/bin/$program" ] || die "no $home/bin/$program: tools/control_plane.sh build"
  done
  [ ! -e "$folder/etcd.pid" ] || die "$folder is in use: tools/control_plane.sh stop $folder"
  (umask 077; mkdir -p "$folder/certs")
  local client peer secure token
  read -r client peer secure < <(free_ports)
  token=$(openssl rand -hex 32)
  (umask 077; echo "$token,admin,admin,system:masters" > "$folder/tokens.csv"; write_kubeconfig
    openssl genrsa -out "$folder/accounts.key" 2048 2> /dev/null)
  run etcd --data-dir "$folder/etcd" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer"
  # Before 1.21 an ended Job goes by itself only behind this gate.
  local gates=--feature-gates=TTLAfterFinished=true
  run kube-apiserver --etcd-servers "http://127.0.0.1:$client" \
    --bind-address 127.0.0.1 --secure-port "$secure" --cert-dir "$folder/certs" \
    --endpoint-reconciler-type none --service-cluster-ip-range 10.0.0.0/24 \
    --token-auth-file "$folder/tokens.csv" --authorization-mode RBAC --anonymous-auth=false \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$folder/accounts.key" \
    --service-account-signing-key-file "$folder/accounts.key" "$gates"
  await "the API server" curl -sf --cacert "$folder/certs/apiserver.crt" \
    -H "Authorization: Bearer $token" "https://127.0.0.1:$secure/readyz"
  run kube-controller-manager --kubeconfig "$folder/kubeconfig" --leader-elect=false \
    --bind-address 127.0.0.1 --secure-port 0 --port 0 \
    --service-account-private-key-file "$folder/accounts.key" "$gates"
  run kube-scheduler --kubeconfig "$folder/kubeconfig" --leader-elect=false \
    --bind-address 127.0.0.1 --secure-port 0 --port 0
  echo "$folder/kubeconfig"
}

stop() {
  for program in kube-scheduler kube-controller-manager kube-apiserver etcd; do
    local file=$folder/$program.pid pid
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    # a number may have been given to another program since
    if [ "$(basename "$(readlink "/proc/$pid/exe" || true)")" = "$program" ]; then
      kill "$pid"
      for _ in $(seq 50); do kill -0 "$pid" 2> /dev/null || break; sleep 0.2; done
      kill -9 "$pid" 2> /dev/null || true
    fi
    rm -f "$file"
  done
}

case "${1:-}" in
  build) build ;;
  start | stop)
    [ -n "${2:-}" ] || die "$1 FOLDER"
    folder=$(realpath -m "$2")
    "$1"
    ;;
  *) die "build, start FOLDER or stop FOLDER" ;;
esac
