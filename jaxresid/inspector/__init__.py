"""Find out what a function's backward pass keeps, from abstract inputs.

All inspection that needs JAX is in this package.
"""
