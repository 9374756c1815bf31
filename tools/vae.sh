#!/usr/bin/env bash
# Makes an environment in DIR with diffusers, so that tests open real VAEs of random weights.
# Usage: tools/vae.sh DIR; use DIR/bin/python.
#
# Only hosts that encode with such a model need the extra `vae`; so its 100 MB stand beside .venv
# and not in it. torch and all else come from there. Idempotent; takes seconds.
set -euo pipefail
dir=${1:?usage: tools/vae.sh DIR}

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

source "$(dirname "$0")/beside.sh"
beside "$dir" "$0" 'import diffusers, torch
diffusers.AutoencoderKLWan, diffusers.AutoencoderKLHunyuanVideo
print("diffusers", diffusers.__version__, "torch", torch.__version__)' "${packages[@]}"
