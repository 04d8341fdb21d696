#!/usr/bin/env bash
# demo_fleet.sh: three serving hosts and a router on this machine, thirty streams in flight all the time; a rollout that goes
# well, one that is bad and takes itself back; then what became of every request, and a chart. The engine is the stand-in
# (tests/engines), which starts in a second; router, units, sshd and client are real. Safe to repeat; `make demo-down` removes it.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.ironserve/demo-fleet
lab=(tests/lab/lab --name demo-fleet)
inventory=(-i .ironserve/lab/demo-fleet/hosts.yml -i "$folder/fleet.yml")
router_lock=sglang-router-0.3.2-py311
began=$SECONDS
step() { printf '\n== %s (%d s so far)\n' "$1" $((SECONDS - began)); }
play() { echo "ansible-playbook ${inventory[*]} $*" && ansible-playbook "${inventory[@]}" "$@"; }
mark() { printf '{"at": %s, "event": "mark", "text": "%s"}\n' "$(date +%s.%3N)" "$1" >>"$folder/events.jsonl"; }

rm -rf "$folder"
mkdir -p "$folder/profiles"
cat >"$folder/fleet.yml" <<EOF
# Beside the lab's own inventory: what its hosts are here, and which of them is the router.
lab:
  hosts:
    h1: &site
      ironserve_locks:
        vllm: .ironserve/standin/standin-vllm-3.11
        sglang: .ironserve/standin/standin-sglang-3.11
        router: $router_lock
      ironserve_model: {path: /srv/standin, served_name: tiny}
      ironserve_profile_paths: [$folder/profiles, profiles]
      ironserve_reports: $folder
      ironserve_min_serving: 2
      ironserve_soak_s: 5
    h2: *site
    h3: *site
    h4: *site
router:
  hosts:
    h4:
EOF
cat >"$folder/profiles/wider.yml" <<EOF
description: More requests at a time
extends: lab_vllm
flags: {max-num-seqs: 64}
EOF
cat >"$folder/profiles/too_wide.yml" <<EOF
description: More requests at a time than there is memory for
extends: lab_vllm
flags: {max-num-seqs: 512}
EOF
# How the stand-in behaves: the pace of a small model, and no memory for so many requests.
standin='tokens_per_s: 15
per_flag:
  - flag: max-num-seqs
    value: 512
    behave: {exit_in: kv_cache, exit_status: 1, exit_message: "torch.OutOfMemoryError: CUDA out of memory."}'

step "1/6 Wheels of the stand-in engine and of the real sglang-router (36 MiB the first time)"
tools/engines.sh standin router

step "2/6 Four test hosts: systemd as PID 1, sshd, a network of their own"
"${lab[@]}" up 4 --bind "$PWD/.ironserve/wheelhouse:/srv/wheelhouse:ro"
for host in h1 h2 h3; do
    "${lab[@]}" exec "$host" sh -c 'mkdir -p /srv/standin && cd /srv/standin && echo "{}" >config.json &&
        echo weights >model.safetensors && cat >standin.yml' <<<"$standin"
done

step "3/6 The router, then the servers, which it admits"
play playbooks/router.yml
play deploy.yml

step "4/6 Load: thirty streams, each read to its last token"
address=$(sed -n '/^    h4:/,/lab_address/s/.*lab_address: "\(.*\)"/\1/p' .ironserve/lab/demo-fleet/hosts.yml)
trap 'touch "$folder/stop"' EXIT # whatever happens, the load ends
"${lab[@]}" run -- "$(command -v python)" tools/load.py "http://$address:8000" --watch --streams 30 --tokens 20 \
    --seconds 900 --log "$folder/events.jsonl" --summary "$folder/load.json" --stop-file "$folder/stop" >"$folder/load.txt" &
load=$!

step "5/6 A rollout: first the canary, then the others, one at a time; each is taken out of the router, and comes back proven"
mark "rollout of wider"
play deploy.yml -e profile=wider

step "6/6 A bad one: the canary fails, gets back what it had, and nobody else is touched (it ends with an error, and has to)"
mark "rollout of too_wide"
if play deploy.yml -e profile=too_wide; then echo "the bad rollout went well, which it must not" >&2 && exit 1; fi
mark "taken back"
play playbooks/status.yml

touch "$folder/stop"
whole=0
wait "$load" || whole=$?
python tools/load_chart.py "$folder/events.jsonl" "$folder/chart.svg"
cat <<EOF

The demo took $((SECONDS - began)) s. \`make demo-down\` removes its hosts.
Chart: $folder/chart.svg
EOF
cat "$folder/load.txt"
exit "$whole"
