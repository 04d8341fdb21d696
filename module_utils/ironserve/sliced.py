# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""What action plugins share that call a module until its work is done, on a host that may be lost meanwhile.

On the controller only: no module imports it.
"""

from __future__ import annotations

from typing import Any, Callable

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from . import remote, slices

Result = dict[str, Any]


class SlicedAction(ActionBase):
    """Has a module work, and says how it goes."""

    _supports_check_mode = True

    def say(self, line: str) -> None:
        """Print a line."""
        Display().display(line)

    def say_done(self, subject: str, done: Result) -> None:
        """Print what was done, or would be."""
        for action in done.get("actions", []):
            self.say(f"{subject}: {'would ' if self._task.check_mode else ''}{action}")

    def call(self, module: str, arguments: Result, task_vars: dict[str, Any] | None) -> Result:
        """One call of a module."""
        answer: Result = self._execute_module(module, module_args=arguments, task_vars=task_vars)
        return answer

    def slices_of(
        self, module: str, arguments: Result, task_vars: dict[str, Any] | None, slice_s: float = slices.SLICE_S
    ) -> Callable[[Result], Result]:
        """One call of a module that works in slices, by its cursor."""

        def execute(cursor: Result) -> Result:
            return self.call(module, {**arguments, "slice_s": slice_s, "cursor": cursor}, task_vars)

        return execute

    def drive(
        self, execute: Callable[[Result], Result], task_vars: dict[str, Any] | None, subject: str, doing: str
    ) -> Result:
        """Call until the work is done; what a lost connection becomes, ``remote.py`` says.

        A second call finishes, or begins anew, what the first one began: a module that works in one go may be driven,
        too. In check mode there is no work to wait for.

        Args:
            execute: one call, with the cursor of the one before.
            task_vars: of the task.
            subject: what is worked on, in the lines that tell how it goes.
            doing: what was going on when the connection was lost: ``its GPUs were being freed``.
        """
        variables = task_vars or {}
        link = remote.link(variables, self._templar.template, AnsibleConnectionFailure)

        def work() -> Result:
            if not self._task.check_mode:
                self._low_level_execute_command("true", sudoable=False)  # a host that cannot be reached is told at once
            lost = () if self._task.check_mode else link.lost
            host = variables["inventory_hostname"]
            return slices.drive(execute, self.say, host, subject, lost, link.reconnect_timeout_s)

        done = link.attempt(doing, work)
        done.pop("slice", None)
        return done
