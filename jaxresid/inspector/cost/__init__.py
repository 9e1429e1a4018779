"""Count the FLOPs, transcendental evaluations and bytes of jaxprs and training steps."""
