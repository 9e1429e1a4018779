"""Differences between two reports as text and as Markdown."""
