from typing import Any

class _Task:
    args: dict[str, Any]
    check_mode: bool

class _Templar:
    def template(self, value: Any) -> Any: ...

class ActionBase:
    _task: _Task
    _templar: _Templar
    def run(self, tmp: str | None = ..., task_vars: dict[str, Any] | None = ...) -> dict[str, Any]: ...
    def _execute_module(
        self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any] | None = ...
    ) -> dict[str, Any]: ...
