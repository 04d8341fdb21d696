#!/usr/bin/env python3
"""Holds memory of a real GPU through libcuda, as an engine does; hold_gpu.c is the same for stand-in GPUs.

usage: hold_cuda.py GPU GIB [--title TITLE] [--ignore-term] [--leave-thread] [--children N]

Says "ready PID TITLE" when it holds, a parent of N children last; each child holds as much and is called TITLE_TPn.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading

SYS_EXIT = 60  # of x86-64: ends this thread, and not the process


def hold(gpu: int, gib: int) -> None:
    """Make a context and allocate."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
    for status in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), gpu),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(gib << 30)),
    ):
        if status:
            raise SystemExit(f"CUDA answered {status}")


def main() -> None:
    """Hold until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gpu", type=int)
    parser.add_argument("gib", type=int)
    parser.add_argument("--title", default="")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--leave-thread", action="store_true")
    parser.add_argument("--children", type=int, default=0)
    want = parser.parse_args()
    for number in range(want.children):
        words = [sys.executable, __file__, str(want.gpu), str(want.gib), "--title", f"{want.title}_TP{number}"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert child.stdout
        print(child.stdout.readline(), end="")
    if not want.children:
        if want.title:
            import setproctitle  # noqa: PLC0415  what engines rename themselves with

            setproctitle.setproctitle(want.title)
        hold(want.gpu, want.gib)
    if want.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"ready {os.getpid()} {want.title or 'holder'}", flush=True)
    if want.leave_thread:
        threading.Thread(target=signal.pause).start()
        ctypes.CDLL(None).syscall(SYS_EXIT, 0)
    signal.pause()


if __name__ == "__main__":
    main()
