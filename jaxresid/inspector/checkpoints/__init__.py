"""Checkpoints: where they are, what each of them saves and costs, and the verdict on each."""
