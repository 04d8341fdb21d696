"""Declares two operators of torchvision that its Python part refers to when it is imported.

The index has torchvision as a CUDA build only. Its library does not load beside a CPU torch, which torchvision itself
bears, but then nobody has declared ``nms`` and ``qnms``, and importing it fails. torch calls :func:`declare` at the end
of its own import (entry point group ``torch.backends``), so no other process pays for it. Nothing here computes: a
call of either operator still fails.
"""

import torch


def declare() -> None:
    """Give both operators their signatures."""
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
