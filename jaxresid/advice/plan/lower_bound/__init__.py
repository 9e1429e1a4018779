"""What no checkpoint can remove from a plan's peak, and what lowers it besides checkpoints."""
