"""The language server: what the linter and traces find, over standard input and output."""
