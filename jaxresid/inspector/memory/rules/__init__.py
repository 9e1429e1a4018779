"""The rules that profiles share: what a compiler materialises, and where."""
