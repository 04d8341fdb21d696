"""The stand-in's ``vllm``: what of its import surface the toolkit touches."""

from ironserve_standin import VLLM_VERSION

__version__ = VLLM_VERSION
