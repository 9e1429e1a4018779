"""Trace functions and training steps with abstract arguments."""
