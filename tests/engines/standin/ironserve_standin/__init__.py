"""A stand-in for the vLLM and SGLang servers: what they show from outside, without a model and without a GPU."""

#: The releases whose behaviour is reproduced; each engine package gives its own as ``__version__``.
VLLM_VERSION = "0.32.0"
SGLANG_VERSION = "0.5.23"
