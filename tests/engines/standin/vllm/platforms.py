"""The kinds of device that the engine looks for: here as in a build for CPUs."""

builtin_platform_plugins = {"cuda": lambda: None, "cpu": lambda: "vllm.platforms.cpu.CpuPlatform"}
