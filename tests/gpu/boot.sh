#!/bin/sh
# What the driver makes when a host boots, from gpus.conf beside this file: device files, /proc/driver/nvidia, the state
# that the stand-in libnvidia-ml reads. The files have the numbers of /dev/zero, which can be opened and mapped without a
# driver: who uses a GPU is told by the path of the file that a process has mapped.
set -eu
state=/run/standin-gpu

! mountpoint -q /proc/driver || umount /proc/driver
rm -rf "$state" /dev/nvidia*

mkdir -p "$state/claims"
chmod 1777 "$state/claims" # whoever holds a GPU writes there, as any user may use one
cp "$(dirname "$0")/gpus.conf" "$state/"
field() { sed -n "s/^$1 //p" "$state/gpus.conf"; }
node() { mknod -m 666 "/dev/$1" c 1 5; }

node nvidiactl
node nvidia-uvm
mount -t tmpfs standin-gpu /proc/driver
mkdir -p /proc/driver/nvidia/gpus
echo "NVRM version: NVIDIA UNIX Open Kernel Module for $(uname -m)  $(field driver)  Release Build" \
    >/proc/driver/nvidia/version
gpu=0
while uuid=$(field "$gpu uuid") && [ -n "$uuid" ]; do
    minor=$(field "$gpu minor") bus=$(field "$gpu bus")
    node "nvidia$minor"
    folder=/proc/driver/nvidia/gpus/$(echo "${bus#0000}" | tr '[:upper:]' '[:lower:]')
    mkdir "$folder"
    printf 'Model: \t\t %s\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %s\n' \
        "$(field "$gpu name")" "$uuid" "${folder##*/}" "$minor" >"$folder/information"
    gpu=$((gpu + 1))
done
