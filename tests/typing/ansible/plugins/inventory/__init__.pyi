class BaseInventoryPlugin:
    NAME: str
