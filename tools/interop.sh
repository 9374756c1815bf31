#!/usr/bin/env bash
# Makes an environment in DIR with the peers that read our exports and stand beside our loader in
# benchmarks: mosaicml-streaming and webdataset. Usage: tools/interop.sh DIR; use DIR/bin/python.
#
# Streaming pins numpy below 2.2, and asks for the clients of six clouds: it cannot stand in .venv.
# So it has an environment of its own with its own numpy, without what a folder of shards does not
# need; torch and whatever else it imports come from .venv, the same builds for both sides.
# Idempotent; takes seconds where .venv is there.
set -euo pipefail
dir=${1:?usage: tools/interop.sh DIR}

packages=(
  mosaicml-streaming==0.13.0
  webdataset==1.0.2
  numpy==2.1.3        # the newest that Streaming allows
  xxhash==3.6.0       # the same; ours is 4
  torchvision==0.15.2 # Streaming imports its names; the newest that does so beside any torch build
  transformers==4.57.6
  catalogue==2.0.10
  Brotli==1.2.0
  python-snappy==0.7.3
  cramjam==2.11.0     # of python-snappy
  zstd==1.5.7.2
  braceexpand==0.1.7  # of webdataset
)
packages+=(huggingface-hub==0.36.2 tokenizers==0.22.2 safetensors==0.7.0)  # of transformers

source "$(dirname "$0")/beside.sh"
beside "$dir" "$0" 'import streaming, webdataset, torch, numpy
print("streaming", streaming.__version__, "webdataset", webdataset.__version__,
      "torch", torch.__version__, "numpy", numpy.__version__)' "${packages[@]}"
