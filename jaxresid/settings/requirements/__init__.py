"""The version of JAX that a project uses: its locks, its environments and its requirements."""
