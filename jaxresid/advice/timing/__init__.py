"""Estimate the time of a program from published figures of chips, and measure it."""
