"""Edits that fix violations."""
