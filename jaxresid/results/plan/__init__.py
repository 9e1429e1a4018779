"""A plan: what it chose, what it chose among, and what no checkpoint can remove."""
