import jax

project = lambda w, x: x @ w
