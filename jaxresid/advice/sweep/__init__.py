"""Compile a function under several policies, at several batch sizes, for several places."""
