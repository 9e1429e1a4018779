"""Choose the checkpoints of a plan: what may be done where, what is traced, and the best of it."""
