"""GPUs for test hosts and for tests on this machine: build the stand-ins, install them, hold GPUs, make faults."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUILT = HERE.parents[1] / ".ironserve" / "gpu"
SONAME = "libnvidia-ml.so.1"
# No _GNU_SOURCE: with it, newer headers bind scanf to symbols that the C library of an older host lacks.
GCC = ["gcc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1"]
PYNVML = "usr/lib/python3/dist-packages/pynvml.py"  # of Debian's own Python
PROGRAMS = {
    SONAME: ("libnvidia-ml.c", ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]),
    "hold_gpu": ("hold_gpu.c", ["-pthread"]),
}

UNIT = """\
[Unit]
Description=Stand-in for a GPU driver
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/standin-gpu/boot.sh

[Install]
WantedBy=sysinit.target
"""


def build() -> Path:
    """The folder with the library and the program, compiled where they are older than their sources."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as turn:  # test files run at the same time
        fcntl.flock(turn, fcntl.LOCK_EX)
        for name, (source, flags) in PROGRAMS.items():
            output, text = BUILT / name, HERE / source
            if not output.exists() or output.stat().st_mtime < text.stat().st_mtime:
                draft = BUILT / f"{name}.new"
                subprocess.run([*GCC, *flags, "-o", str(draft), str(text)], check=True)
                draft.replace(output)
    return BUILT


def uuid(gpu: int) -> str:
    """UUID of a GPU that `describe` describes."""
    return f"GPU-5b293ee6-012e-5a9c-7cef-6a637982d6{gpu:02x}"


def describe(gpus: int = 8) -> str:
    """gpus.conf of a host with RTX PRO 6000: two sockets, half of the GPUs on each."""
    lines = ["driver 595.58.03", "nvml 13.595.58.03", "cuda 13020"]
    for gpu in range(gpus):
        levels = [0 if it == gpu else 40 if it * 2 // gpus == gpu * 2 // gpus else 50 for it in range(gpus)]
        values = {
            "uuid": uuid(gpu),
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "minor": gpu,
            "bus": f"00000000:{1 + 16 * gpu:02X}:00.0",
            "compute": "12.0",
            "total_mib": 97887,
            "reserved_mib": 636,
            "free_delay_s": 0.13,
            "persistence": 1,
            "power_mw": 85000,
            "clock_mhz": 180,
            "temperature": 31,
            "pcie": "5 16 5 16",
            "topology": " ".join(map(str, levels)),
            "ecc": "1 0",
            "bar1_mib": 131072,
        }
        lines += [f"{gpu} {key} {value}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def lay_out(folder: Path, gpus: int = 2) -> dict[str, str]:
    """GPUs in a folder of this machine; returns the environment in which processes see them."""
    (folder / "claims").mkdir(parents=True)
    (folder / "gpus.conf").write_text(describe(gpus))
    (folder / "dev").mkdir()
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{gpu}" for gpu in range(gpus))]:
        (folder / "dev" / name).write_bytes(bytes(4096))  # an empty file cannot be mapped
    return {"STANDIN_GPU": str(folder), "LD_LIBRARY_PATH": str(build())}


def install(lab: Any, host: str, gpus: int = 8, pynvml: bool = True) -> None:
    """Give the host GPUs and all that a driver's package brings, in place of those it had; they outlive a reboot.

    These are the library, nvidia-smi, device files and /proc/driver/nvidia. ``pynvml``: the host's own Python has it.
    """
    built, libraries = build(), f"usr/lib/{platform.machine()}-linux-gnu"
    module = _pynvml()
    files = {
        f"{libraries}/{SONAME}": (built / SONAME).read_bytes(),
        "usr/bin/hold_gpu": (built / "hold_gpu").read_bytes(),
        "usr/bin/nvidia-smi": (HERE / "nvidia_smi.py").read_bytes(),
        "usr/lib/standin-gpu/pynvml.py": module,
        "usr/lib/standin-gpu/boot.sh": (HERE / "boot.sh").read_bytes(),
        "usr/lib/standin-gpu/gpus.conf": describe(gpus).encode(),
        "etc/systemd/system/standin-gpu.service": UNIT.encode(),
    }
    if pynvml:
        files[PYNVML] = module
    script = (
        f"set -e; rm -f /{PYNVML}; tar -C / -xf -; ldconfig; "
        "systemctl daemon-reload; systemctl enable -q standin-gpu; systemctl restart standin-gpu"
    )
    lab.exec(host, ["sh", "-c", script], input=_archive(files), text=False)


def set_faults(lab: Any, host: str, *faults: str) -> None:
    """Have these faults and no others, such as "0 hang", "3 stuck 500", "mismatch"; they end with a reboot too."""
    write = "cat > /run/standin-gpu/.faults && mv /run/standin-gpu/.faults /run/standin-gpu/faults.conf"
    lab.exec(host, ["sh", "-c", write], input="".join(f"{fault}\n" for fault in faults))


def hold(lab: Any, host: str, unit: str, *arguments: object) -> dict[str, int]:
    """Start ``hold_gpu ARGUMENTS`` as a unit of the host; once all hold, the pid of each process by its title."""
    said = f"/run/standin-gpu/{unit}.said"
    output = f"StandardOutput=file:{said}"
    command = ["systemd-run", "-q", "--unit", unit, "-p", output, "hold_gpu", *map(str, arguments)]
    lab.exec(host, command)
    wait = (
        f"pid=$(systemctl show -P MainPID {unit}); for i in $(seq 200); do "
        f'grep -qs "^ready $pid " {said} && exec cat {said}; sleep 0.05; done; systemctl status {unit}; exit 1'
    )
    return processes(lab.exec(host, ["sh", "-c", wait]).stdout)


def start(environment: dict[str, str], *arguments: object) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """As `hold`, on this machine, in a session of their own; the test ends all of the processes."""
    command = [str(build() / "hold_gpu"), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    said = ""
    while f"ready {process.pid} " not in said:
        line = process.stdout.readline()
        assert line, f"{command} ended with {process.wait()}"
        said += line
    return process, processes(said)


def processes(said: str) -> dict[str, int]:
    """Pid of each process by its title, from what hold_gpu said; the newest where one was started again."""
    ready = (line.split(" ", 2) for line in said.splitlines())
    return {title: int(pid) for _, pid, title in ready}


def _pynvml() -> bytes:
    spec = importlib.util.find_spec("pynvml")
    assert spec
    assert spec.origin
    return Path(spec.origin).read_bytes()


def _archive(files: dict[str, bytes]) -> bytes:
    """A tar archive; everything is executable, since nothing minds."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
