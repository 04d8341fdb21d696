"""The parts of the `lab` command: images, namespaces, cgroups, the keeper of the hosts, state on disk."""
