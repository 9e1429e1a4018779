"""Compare one function under several checkpoint policies."""
