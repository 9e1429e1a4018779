"""Find the residuals of functions and training steps, with their origins and consumers."""
