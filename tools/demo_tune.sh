#!/usr/bin/env bash
# demo_tune.sh: tunes the real vLLM (CPU, a tiny model) on a test host on this machine with the real playbooks/tune.yml: two
# profiles, each launched, gated and measured; the faster one serves in the end, and a page tells why. Safe to repeat;
# `make demo-down` removes the host. What was downloaded and built stays in .ironserve for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.ironserve/demo-tune
inventory=(-i .ironserve/lab/demo-tune/hosts.yml -e "@$folder/site.yml")
lab=(tests/lab/lab --name demo-tune)
began=$SECONDS
step() { printf '\n== %s (%d s so far)\n' "$1" $((SECONDS - began)); }
play() { echo "ansible-playbook ${inventory[*]} $*" && ansible-playbook "${inventory[@]}" "$@"; }

rm -rf "$folder"
mkdir -p "$folder/profiles"
cat >"$folder/profiles/one_at_a_time.yml" <<EOF
description: vLLM on the CPU of a test host that decodes one request at a time
extends: lab_vllm
flags: {max-num-seqs: 1}
EOF
# Little, so that the demo is short: with four runs of each level a comparison can decide something.
cat >"$folder/site.yml" <<EOF
ironserve_profile_paths: [$folder/profiles, profiles]
ironserve_reports: $folder
ironserve_baselines: $PWD/$folder/baselines
ironserve_benchmark: {concurrencies: [1, 8], input_tokens: 64, output_tokens: 32, repetitions: 4, min_requests: 8}
EOF

step "1/4 Wheels of the real vLLM and of the client that measures (857 MiB the first time), a tiny model with random weights"
tools/engines.sh vllm client

step "2/4 A test host: systemd as PID 1, sshd, its own network (its image takes half a minute the first time)"
"${lab[@]}" up 1 \
    --bind "$PWD/.ironserve/wheelhouse:/srv/wheelhouse:ro" \
    --bind "$PWD/.ironserve/models:/srv/models:ro" \
    --bind "$PWD/.ironserve/engines:/opt/ironserve/engines" \
    --bind "$PWD/.ironserve/clients:/opt/ironserve/clients"

step "3/4 Two hypotheses: which serves eight clients faster?"
play playbooks/tune.yml -l h1 -e profiles=one_at_a_time,lab_vllm -e rounds=1 -e objective=c8 -e budget_min=30

step "4/4 The record of both, as a page"
play playbooks/report.yml

cat <<EOF

The demo took $((SECONDS - began)) s. The page: $folder/report.html
The winner's profile, with its numbers: $folder/profiles/tuned_lab.yml
\`make demo-down\` removes the host.
EOF
