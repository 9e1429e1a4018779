"""The configuration: its keys, its globs and the versions of JAX that a project admits."""
