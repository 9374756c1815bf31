#!/usr/bin/env bash
# Makes .venv with the pinned packages; installs the few system packages that those need.
# Idempotent; called by `make`. Debian or Ubuntu with Python 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "wsdata needs Python 3.11; set PYTHON to one" >&2
  exit 1
}

missing=()
command -v c++ >/dev/null || missing+=(g++)                    # pdqhash and wsdata/loader/_straight.c compile
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
  || missing+=(python3.11-dev)
"$python" -c 'import ensurepip' 2>/dev/null || missing+=(python3.11-venv)
ldconfig -p | grep -q 'libseccomp\.so\.2' || missing+=(libseccomp2)  # the decode sandbox
ldconfig -p | grep -q 'libchromaprint\.so\.1' || missing+=(libchromaprint1)  # prints of sound
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)  # tests run it
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing system packages: ${missing[*]}" >&2
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "installing pinned Python packages into .venv (a few minutes the first time)" >&2
.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.lock
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
.venv/bin/python tools/get_helm.py  # the chart's tests render it
touch .venv/.installed
