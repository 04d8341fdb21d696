"""Who listens on a TCP port: /proc/net/tcp gives the socket's inode, /proc/PID/fd the process that holds it."""

from __future__ import annotations

LISTEN = "0A"


def listening_inodes(proc_net_tcp: str, port: int) -> set[str]:
    """Inodes of the sockets that listen on ``port``, from the text of /proc/net/tcp or /proc/net/tcp6."""
    inodes = set()
    for line in proc_net_tcp.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(fields[9])
    return inodes


def cgroup_unit(proc_cgroup: str) -> str | None:
    """The systemd unit of a process, from the text of /proc/PID/cgroup (v1 and v2)."""
    for line in proc_cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controllers == "name=systemd":
            for part in reversed(path.split("/")):
                if part.endswith((".service", ".scope")):
                    return part
    return None
