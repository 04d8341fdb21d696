#!/usr/bin/env bash
# molecule.sh SCENARIO...: runs scenarios one after the other with the ansible-core of the first ansible-playbook in PATH.
# Hosts that an aborted run left behind are removed first; those of a failed run are removed too, after its log was shown.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -t 1 ] || export NO_COLOR=1 ANSIBLE_NOCOLOR=1
for scenario in "$@"; do
    echo "== molecule test -s $scenario ($(ansible --version | sed -n 1p))"
    tests/lab/lab --name "molecule-${scenario//_/-}" down
    molecule reset --scenario-name "$scenario" >/dev/null 2>&1 || true
    molecule test --scenario-name "$scenario" --destroy always
done
