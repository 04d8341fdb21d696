"""Variables that the engine reads, where the real one lists them; a few of its own."""

environment_variables = {
    "VLLM_API_KEY": None,
    "VLLM_CPU_KVCACHE_SPACE": None,
    "VLLM_LOG_STATS_INTERVAL": None,
    "VLLM_NO_USAGE_STATS": None,
    "VLLM_WORKER_MULTIPROC_METHOD": None,
}
