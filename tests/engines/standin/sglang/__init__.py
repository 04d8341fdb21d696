"""The stand-in's ``sglang``: what of its import surface the toolkit touches."""

from ironserve_standin import SGLANG_VERSION

__version__ = SGLANG_VERSION
