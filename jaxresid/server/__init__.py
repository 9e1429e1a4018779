"""The language server: what the linter finds, in editors, over standard input and output."""
