"""``python -m sglang.launch_server``: the older way to start the server."""

from ironserve_standin.sglang import main

if __name__ == "__main__":
    main()
