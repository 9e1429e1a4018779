"""Subjects: what was traced, a function or a training step, and what there is to ask of either."""
