"""Estimate the memory that a program takes at its peak, as a compiler lowers it."""
