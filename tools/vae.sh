#!/usr/bin/env bash
# Makes an environment in DIR with diffusers, so that tests open real VAEs of random weights.
# Usage: tools/vae.sh DIR; use DIR/bin/python.
#
# Only hosts that encode with such a model need the extra `vae`; so its 100 MB stand beside .venv
# and not in it. torch and all else come from there. Idempotent; takes seconds.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:?usage: tools/vae.sh DIR}
[ -x "$root/.venv/bin/python" ] || bash "$root/tools/setup.sh"

packages=(
  diffusers==0.42.1
  safetensors==0.8.0
  lazy-importer==0.1.0
  importlib-metadata==10.2.0
  zipp==4.1.2
  huggingface-hub==2.4.0
  hf-xet==1.8.0
  httpx2==2.16.2  # of huggingface-hub, and so are the next two
  httpcore2==2.16.2
  truststore==0.10.5
)

stamp=$(cat "$root/tools/vae.sh" "$root/requirements.lock" | sha256sum)
[ "$(cat "$dir/.installed" 2>/dev/null)" != "$stamp" ] || exit 0
if [ ! -x "$dir/bin/python" ]; then
  "$root/.venv/bin/python" -m venv "$dir"
fi
"$dir/bin/python" -m pip install -q --disable-pip-version-check --no-deps "${packages[@]}"
"$root/.venv/bin/python" - "$dir" <<'PYTHON'
import sys
import sysconfig
from pathlib import Path

ours = sysconfig.get_path("purelib")
theirs = Path(sys.argv[1], "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
(theirs / "site-packages" / "zz_beside.pth").write_text(f"{ours}\n")
PYTHON
"$dir/bin/python" -W ignore -c 'import diffusers, torch
diffusers.AutoencoderKLWan, diffusers.AutoencoderKLHunyuanVideo
print("diffusers", diffusers.__version__, "torch", torch.__version__)'
echo "$stamp" > "$dir/.installed"
