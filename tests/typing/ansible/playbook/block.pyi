from typing import Any

class Block:
    block: list[Any]
    rescue: list[Any]
