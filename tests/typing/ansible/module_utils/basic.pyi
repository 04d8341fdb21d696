from typing import Any, NoReturn

class AnsibleModule:
    params: dict[str, Any]
    check_mode: bool
    def __init__(
        self,
        argument_spec: dict[str, dict[str, Any]],
        required_if: list[tuple[str, str, tuple[str, ...]]] = ...,
        supports_check_mode: bool = ...,
    ) -> None: ...
    def exit_json(self, **result: Any) -> NoReturn: ...
    def fail_json(self, msg: str, **result: Any) -> NoReturn: ...
    def warn(self, warning: str) -> None: ...
