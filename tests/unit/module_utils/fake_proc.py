"""A /proc made of files, for tests of who holds what."""

from __future__ import annotations

# What `nvmlInit` and a CUDA context map, measured on an H200 (docs/evidence/gpu-holders.md), shortened.
NVIDIA_SMI = "7f0000000000-7f0000001000 rw-s 00000000 00:06 300                        /dev/nvidiactl\n"
CUDA = """\
204a00000-204c00000 rw-s 00000000 00:06 301                              /dev/nvidiactl
7f2b00000000-7f2b00200000 rw-s 00000000 00:06 302                        /dev/nvidia-uvm
7f2b10000000-7f2b10001000 rw-s 00000000 00:06 303                        /dev/nvidia0
7f2b10001000-7f2b10002000 rw-s 00000000 00:06 303                        /dev/nvidia0
7f2b10002000-7f2b10003000 rw-s 00000000 00:06 304                        /dev/nvidia11
7f2b20000000-7f2b20001000 r-xp 00000000 08:01 305                        /opt/dev/nvidia3/libx.so
7f2b20001000-7f2b20002000 rw-p 00000000 00:00 0
"""

# /proc/driver/nvidia/gpus/0000:00:06.0/information of driver 580.159.04.
INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 41
GPU UUID: \t GPU-81e540af-1718-43f5-3b6a-791b20ddf894
Video BIOS: \t 96.00.a5.00.1a
Bus Location: \t 0000:00:06.0
Device Minor: \t 0
"""

MONITOR_FDS = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia-uvm"]


def fake_process(proc, pid, parent=1, session=None, comm="python3", argv=("python3",), cgroup="0::/", **more):
    """A folder of /proc: ``fds`` are targets of links, ``maps`` is text, ``state`` and ``threads`` are of its stat.

    A ``uid`` that has no name on this machine is the user of that number.
    """
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    state, threads = more.get("state", "S"), more.get("threads", 1)
    zeros = " ".join(["0"] * 11)
    (folder / "stat").write_text(
        f"{pid} ({comm}) {state} {parent} {pid} {session or pid} {zeros} 0 0 {threads} 0 {more.get('ticks', pid)} 0\n"
    )
    (folder / "cmdline").write_text("\0".join(argv) + "\0")
    (folder / "cgroup").write_text(f"{cgroup}\n")
    uid = more.get("uid", 0)
    uids = "\t".join([str(uid)] * 4)
    (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{uids}\nSigIgn:\t{more.get('sigign', '0' * 16)}\n")
    if "exe" in more:
        (folder / "exe").symlink_to(more["exe"])
    (folder / "maps").write_text(more.get("maps", ""))
    place = folder
    if more.get("thread"):
        place = folder / "task" / str(more["thread"])
        (place / "fd").mkdir(parents=True)
        (place / "maps").write_text(more.get("thread_maps", ""))
    for number, target in enumerate(more.get("fds", ())):
        (place / "fd" / str(number)).symlink_to(target)
    return folder
