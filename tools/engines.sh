#!/usr/bin/env bash
# engines.sh [standin|sglang|vllm|router|client ...]: has what test hosts run engines from: wheels in
# .ironserve/wheelhouse, a tiny model in .ironserve/models, a folder for environments on disk (a test host's
# own disk is memory) in .ironserve/engines, and one for clients in .ironserve/clients.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .ironserve/engines .ironserve/clients .ironserve/wheelhouse
python tests/engines/make_tiny_model.py .ironserve/models/tiny-llama
for engine in "$@"; do
    case $engine in
        standin) python tests/engines/standin_lock.py ;;
        sglang) python tools/wheelhouse.py environments/sglang-0.5.23-cpu ;;
        vllm) python tools/wheelhouse.py environments/vllm-0.32.0-cpu ;;
        router) python tools/wheelhouse.py environments/sglang-router-0.3.2-py311 ;;
        client) python tools/wheelhouse.py environments/vllm-bench-0.32.0-py311 ;;
        *) echo "$engine: no such engine; known: standin sglang vllm router client" >&2; exit 2 ;;
    esac
done
