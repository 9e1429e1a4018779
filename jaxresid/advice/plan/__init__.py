"""Plan the checkpoints that fit a function into a budget of memory at the least cost."""
