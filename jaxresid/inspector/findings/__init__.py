"""Findings of a trace besides the verdicts on checkpoints."""
