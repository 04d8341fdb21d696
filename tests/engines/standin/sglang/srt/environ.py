"""Variables that the engine reads, where the real one lists them; a few of its own."""


class Envs:
    """The variables, by name."""

    SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION = True
    SGLANG_ENABLE_PCIE_IPC_ALLREDUCE = False
    SGLANG_HEALTH_CHECK_TIMEOUT = 20
    SGLANG_USE_CPU_ENGINE = False
