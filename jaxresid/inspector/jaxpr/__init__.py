"""Read jaxprs: their nesting, source lines, modules, passes and checkpoints; and rewrite them."""
