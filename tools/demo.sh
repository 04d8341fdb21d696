#!/usr/bin/env bash
# demo.sh [vllm|sglang]: deploys the real engine (CPU, a tiny model) onto a test host on this machine with the real deploy.yml,
# and asks it something. Safe to repeat; a host that runs the other engine is switched. `make demo-down` removes the host. What
# was downloaded and built stays in .ironserve for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=${1:-vllm}
case $engine in
    vllm) title=vLLM mib=857 other=sglang ;;
    sglang) title=SGLang mib=938 other=vllm ;;
    *) echo "ENGINE=$engine: no such engine; known: sglang vllm" >&2; exit 2 ;;
esac
deploy="deploy.yml -e profile=lab_$engine"
inventory=.ironserve/lab/demo/hosts.yml
lab=(tests/lab/lab --name demo)
began=$SECONDS
step() { printf '\n== %s (%d s so far)\n' "$1" $((SECONDS - began)); }

step "1/4 Wheels of the real $title ($mib MiB the first time), a tiny model with random weights"
tools/engines.sh "$engine"

step "2/4 A test host: systemd as PID 1, sshd, its own network (its image takes half a minute the first time)"
"${lab[@]}" up 1 \
    --bind "$PWD/.ironserve/wheelhouse:/srv/wheelhouse:ro" \
    --bind "$PWD/.ironserve/models:/srv/models:ro" \
    --bind "$PWD/.ironserve/engines:/opt/ironserve/engines"

step "3/4 ansible-playbook -i $inventory $deploy"
# shellcheck disable=SC2086  # words, not one
ansible-playbook -i "$inventory" $deploy

step "4/4 A completion, asked on the host"
request='{"model": "tiny", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}'
echo "tests/lab/lab --name demo exec h1 curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '$request'"
"${lab[@]}" exec h1 curl --silent --show-error --fail --max-time 60 http://127.0.0.1:8000/v1/completions \
    -H 'Content-Type: application/json' -d "$request"
printf '\n(random weights: no sense is to be expected, only tokens)\n\n'
ansible-playbook -i "$inventory" playbooks/status.yml

cat <<EOF
The demo took $((SECONDS - began)) s. Look at it, change it, remove it:
  . .venv/bin/activate
  ansible-playbook -i $inventory playbooks/status.yml
  tests/lab/lab --name demo exec h1 systemctl status ironserve-main
  tests/lab/lab --name demo exec h1 tail -f /var/log/ironserve/main.log
  ansible-playbook -i $inventory $deploy --check --diff
  ansible-playbook -i $inventory playbooks/stop.yml
  ansible-playbook -i $inventory $deploy
  make demo ENGINE=$other
  make demo-down
EOF
