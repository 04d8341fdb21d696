"""The command line of the lab."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys

from . import commands, images
from .common import LabError
from .state import Bind, Host, Lab

DESCRIPTION = """\
Real test hosts on one Linux machine: each has systemd as PID 1, sshd and a network address of its own, and all of them
are gone with `lab down`. The lab has no route out; Ansible reaches its hosts from outside, through the inventory that
`lab up` writes.
"""


def main() -> int:
    """Run the command line; every error is one line."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is half done is undone
    try:
        commands.require_machine()
        arguments.action(arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", type=_lab_name, default="lab", help='which lab; several can run at once ("lab")')
    add = parser.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser

    command = add("images", help="build the root file systems (otherwise the first `up` does)")
    command.add_argument("suites", nargs="*", metavar="SUITE", help=f"of: {' '.join(images.SUITES)} (all)")
    command.set_defaults(action=_images)

    command = add("up", help="have hosts h1..hN running; those that run stay as they are")
    command.add_argument("count", type=int, metavar="N")
    command.add_argument("--suite", choices=images.SUITES, default="bookworm", help="what new hosts run (bookworm)")
    command.add_argument(
        "--bind",
        type=_bind,
        action="append",
        default=[],
        metavar="SRC:DST[:ro]",
        help="show new hosts the machine's folder SRC as DST; {host} in SRC is the host's name",
    )
    command.add_argument("--cgroup", choices=("v2", "v1"), default="v2", help="control groups of new hosts (v2)")
    command.set_defaults(action=lambda a: commands.up(Lab(a.name), a.count, a.suite, a.bind, a.cgroup))

    command = add("down", help="remove hosts, or the whole lab, also one that has crashed")
    command.add_argument("hosts", nargs="*", metavar="HOST")
    command.set_defaults(action=lambda a: commands.down(Lab(a.name), a.hosts))

    command = add("list", help="show the labs of this checkout and their hosts")
    command.add_argument("--json", action="store_true")
    command.set_defaults(action=_list)

    command = add("exec", help="run a command in a host, as root; its exit code is the command's")
    command.add_argument("host", metavar="HOST")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD...")
    command.set_defaults(action=_exec)

    for name, about, connected in (("cut", "unplug a host: packets vanish", False), ("join", "plug it in again", True)):
        command = add(name, help=about)
        command.add_argument("host", metavar="HOST")
        command.set_defaults(action=lambda a, c=connected: commands.plug(_host(a), c))

    command = add("reboot", help="reboot a host cleanly; its disk stays, /run and /tmp do not")
    command.add_argument("host", metavar="HOST")
    command.set_defaults(action=lambda a: commands.reboot(_host(a)))

    command = add("run", help="run a command of the machine in the network of the lab")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD...")
    command.set_defaults(action=lambda a: commands.run(Lab(a.name), _command(a)))

    command = add("connect", help="relay stdin and stdout to a port of a host (ssh's ProxyCommand)")
    command.add_argument("host", metavar="HOST")
    command.add_argument("port", type=int, metavar="PORT")
    command.set_defaults(action=lambda a: commands.connect(Lab(a.name), a.host, a.port))
    return parser


def _lab_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: lower-case letters, digits and dashes, 31 at most")
    return text


def _bind(text: str) -> Bind:
    source, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    if not source or not target.startswith("/") or (colon and mode != "ro"):
        raise argparse.ArgumentTypeError(f"{text!r} is not SRC:/DST or SRC:/DST:ro")
    return Bind(source, target, mode == "ro")


def _host(arguments: argparse.Namespace) -> Host:
    return commands.parse_host(Lab(arguments.name), arguments.host)


def _command(arguments: argparse.Namespace) -> list[str]:
    words: list[str] = arguments.command
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise LabError("which command? It is the last argument")
    return words


def _images(arguments: argparse.Namespace) -> None:
    for suite in arguments.suites or images.SUITES:
        if suite not in images.SUITES:
            raise LabError(f"no image for {suite!r}; there are: {' '.join(images.SUITES)}")
        print(images.ensure(suite))


def _exec(arguments: argparse.Namespace) -> None:
    commands.execute(_host(arguments), _command(arguments))


def _list(arguments: argparse.Namespace) -> None:
    labs = commands.lab_states()
    if arguments.json:
        print(json.dumps(labs, indent=2))
        return
    for lab in labs:
        print(f"{lab['name']}  {'running' if lab['running'] else 'ended'}  {lab['inventory']}")
        for host in lab["hosts"]:
            print("  {name:<4} {state:<8} {suite:<9} cgroup {cgroup}  {address:<12} pid {pid}".format(**host))
