# Sourced by what makes an environment beside .venv: packages of its own, everything else from there.
# shellcheck shell=bash

# beside DIR SCRIPT CHECK PACKAGE...: DIR/bin/python has the packages, without what they ask for, and
# runs CHECK. Idempotent: done once for each text of SCRIPT, this file and the lock.
beside() {
  local dir=$1 script=$2 check=$3 root stamp
  shift 3
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  [ -x "$root/.venv/bin/python" ] || bash "$root/tools/setup.sh"
  stamp=$(cat "$script" "${BASH_SOURCE[0]}" "$root/requirements.lock" | sha256sum)
  [ "$(cat "$dir/.installed" 2>/dev/null)" != "$stamp" ] || return 0
  if [ ! -x "$dir/bin/python" ]; then
    "$root/.venv/bin/python" -m venv "$dir"
  fi
  "$dir/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$@"
  "$root/.venv/bin/python" - "$dir" <<'PYTHON'
import sys
import sysconfig
from pathlib import Path

ours = sysconfig.get_path("purelib")
theirs = Path(sys.argv[1], "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
(theirs / "site-packages" / "zz_beside.pth").write_text(f"{ours}\n")
PYTHON
  "$dir/bin/python" -W ignore -c "$check"
  echo "$stamp" > "$dir/.installed"
}
