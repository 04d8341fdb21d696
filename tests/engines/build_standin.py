"""Build the wheel of the stand-in engine: no network, no build backend, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "standin"
NAME = "ironserve_standin"
VERSION = "1.0.0"
INFO = f"{NAME}-{VERSION}.dist-info"
#: The oldest time that a zip file can hold.
TIME = (1980, 1, 1, 0, 0, 0)

METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME.replace("_", "-")}
Version: {VERSION}
Summary: Stands in for the vLLM and SGLang servers in the tests of Ironserve
Requires-Python: >=3.9
Requires-Dist: PyYAML
Requires-Dist: setproctitle
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: build_standin
Root-Is-Purelib: true
Tag: py3-none-any
"""
ENTRY_POINTS = """\
[console_scripts]
vllm = ironserve_standin.vllm:main
sglang = sglang.cli:main
"""


def members() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of the wheel, without its list."""
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".py", ".yml"):
            yield path.relative_to(SOURCE).as_posix(), path.read_bytes()
    for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("entry_points.txt", ENTRY_POINTS)):
        yield f"{INFO}/{name}", text.encode()


def record_line(name: str, content: bytes) -> str:
    """Return the line of RECORD for one file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def build(folder: Path) -> Path:
    """Write the wheel into `folder` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{NAME}-{VERSION}-py3-none-any.whl"
    files = list(members())
    record = "".join(record_line(name, content) for name, content in files) + f"{INFO}/RECORD,,\n"
    # Stored, not compressed: releases of zlib pack the same text into different bytes.
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [*files, (f"{INFO}/RECORD", record.encode())]:
            member = zipfile.ZipInfo(name, TIME)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: build_standin.py FOLDER")
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
