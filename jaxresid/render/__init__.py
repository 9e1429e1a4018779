"""Rendering of values as text, one module per format.

No module here imports jax or libcst.
"""
