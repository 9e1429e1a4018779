"""The version of JAX that a project uses, from its uv.lock and its pyproject.toml."""
