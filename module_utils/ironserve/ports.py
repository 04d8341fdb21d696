"""Who listens on a TCP port: /proc/net/tcp gives the socket's inode, /proc/PID/fd the process that holds it."""

from __future__ import annotations

LISTEN = "0A"
ESTABLISHED = "01"


def listening_inodes(proc_net_tcp: str, port: int) -> set[str]:
    """Inodes of the sockets that listen on ``port``, from the text of /proc/net/tcp or /proc/net/tcp6."""
    inodes = set()
    for line in proc_net_tcp.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(fields[9])
    return inodes


def established(proc_net_tcp: str, port: int) -> int:
    """How many connections to the local ``port`` are open, from the same texts."""
    count = 0
    for line in proc_net_tcp.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == ESTABLISHED and int(fields[1].rsplit(":", 1)[1], 16) == port:
            count += 1
    return count
