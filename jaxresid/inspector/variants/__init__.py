"""Variants of a function or training step: the same computation with other checkpoints."""
