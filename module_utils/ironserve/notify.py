"""systemd's notification protocol (sd_notify), with nothing but a socket."""

from __future__ import annotations

import os
import socket

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"

OWN_VARIABLES = (SOCKET_VARIABLE, WATCHDOG_VARIABLE, "WATCHDOG_PID")
"""What systemd tells the unit. The engine does not get it: none of its libraries may say READY=1 for it."""


def say(*assignments: str) -> None:
    """Tell systemd, as in ``say("READY=1", "STATUS=serving")``; outside a unit of Type=notify nothing happens."""
    address = os.environ.get(SOCKET_VARIABLE, "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall("\n".join(assignments).encode())


def watchdog_s() -> float:
    """Seconds within which the unit's watchdog wants to hear something; 0 where it has none."""
    return int(os.environ.get(WATCHDOG_VARIABLE) or 0) / 1e6
