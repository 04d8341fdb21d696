"""What becomes of a connection that is lost in the middle of a roll.

Ansible takes a host that it cannot reach out of the play and runs no rescue for it, so that nobody says what it was
doing, and the hosts after it are rolled all the same. A roll asks for an ordinary failure instead, by variables of its
tasks:

    serve_lost_fails: true             a lost connection is a failure with ``lost: true``
    serve_reconnect_timeout_s: 120     how long work in slices waits for the host to come back
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from .slices import RECONNECT_TIMEOUT_S

Result = dict[str, Any]


class Link(NamedTuple):
    """How a task takes a lost connection."""

    lost: type[Exception]
    """What is raised then."""
    fails: bool
    reconnect_timeout_s: float

    def attempt(self, doing: str, work: Callable[[], Result]) -> Result:
        """What the work answers, or a failure that says what was being done when the connection was lost.

        Where nobody asked for a failure the exception goes on, and Ansible counts the host as unreachable.
        """
        try:
            return work()
        except self.lost as error:
            if not self.fails:
                raise
            told = {"lost": True, "doing": doing, "error": str(error), "msg": f"connection lost while {doing}"}
            return {"failed": True, "changed": False, **told}


def link(variables: Mapping[str, Any], template: Callable[[Any], Any], lost: type[Exception]) -> Link:
    """How the task with these variables takes a lost connection.

    Args:
        variables: of the task.
        template: fills in a variable that is a template.
        lost: the exception of a lost connection.
    """
    wait_s = template(variables.get("serve_reconnect_timeout_s", RECONNECT_TIMEOUT_S))
    return Link(lost, lost_fails(variables, template), float(wait_s))


def lost_fails(variables: Mapping[str, Any], template: Callable[[Any], Any]) -> bool:
    """Whether the task with these variables wants a failure for a lost connection."""
    return str(template(variables.get("serve_lost_fails", False))).lower() in ("true", "yes", "1")
