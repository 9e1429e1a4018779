"""Find what a jaxpr has more than once: equal jaxprs, layers that are alike."""
