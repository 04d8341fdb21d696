"""How Ansible reaches the hosts: from outside, by ssh, through `lab connect`."""

from __future__ import annotations

import json
import shlex

from .state import CHECKOUT, Lab

LAB = CHECKOUT / "tests" / "lab" / "lab"

# In ssh_args, not in the common ones: those come later on the command line, and ssh takes the first value it is given.
SSH_ARGS = (
    "-o ControlMaster=auto -o ControlPersist=60s -o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=3"
)


def write(lab: Lab) -> None:
    """Write hosts.yml and known_hosts for the hosts that the lab has now."""
    proxy = f"{shlex.join([str(LAB), '--name', lab.name, 'connect'])} %h %p"
    common = [f"ProxyCommand={proxy}", f'UserKnownHostsFile="{lab.known_hosts}"', "StrictHostKeyChecking=yes"]
    common += ["IdentitiesOnly=yes"]  # an agent full of keys would use up the tries
    variables = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(lab.ssh_key),
        "ansible_ssh_args": SSH_ARGS,
        "ansible_ssh_common_args": shlex.join(word for option in common for word in ("-o", option)),
    }
    lines = ["# Written by tests/lab/lab; the next `up` or `down` writes it anew.", "lab:", "  hosts:"]
    keys = []
    for host in lab.hosts():
        lines += [f"    {host.name}:", f"      ansible_host: {json.dumps(host.ssh_name)}"]
        lines += [f"      lab_address: {json.dumps(host.address)}"]
        kind, key, _ = (host.folder / "ssh_host_key.pub").read_text().split()
        keys.append(f"{host.ssh_name} {kind} {key}\n")
    lines += ["  vars:", *(f"    {name}: {json.dumps(value)}" for name, value in variables.items())]
    lab.known_hosts.write_text("".join(keys))
    lab.inventory.write_text("\n".join(lines) + "\n")
