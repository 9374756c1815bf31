#!/usr/bin/env bash
# Installs what tests against a real S3 server need: Ceph's gateway, a monitor and a store.
# Idempotent; Debian or Ubuntu. About 200 MB. No daemon is left running: tests start their own.
set -euo pipefail

missing=()
for package in radosgw ceph-mon ceph-osd; do
  command -v "$package" >/dev/null || missing+=("$package")  # each names its program
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing system packages: ${missing[*]}" >&2
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
