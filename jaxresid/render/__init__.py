"""Values -> text, one module per format. Never jax, never libcst."""
