#!/usr/bin/env bash
# Installs the system packages that test hosts and stand-ins need, where they are missing, and says so. Debian and Ubuntu.
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null || [ -e "$1" ] || missing+=("$2"); }
need mmdebstrap mmdebstrap
need socat socat
need ip iproute2
need nsenter util-linux
need ssh openssh-client
need ssh-keygen openssh-client
need gcc gcc
need chromium chromium
need /usr/include/stdio.h libc6-dev
need /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing system packages: ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "this machine has no apt-get: install the packages above by hand (test hosts are made on Debian and Ubuntu)" >&2
    exit 2
fi
if [ "$(id -u)" != 0 ]; then
    echo "not root: run  sudo apt-get install ${missing[*]}" >&2
    exit 2
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
