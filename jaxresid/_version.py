"""The version: the one place that has it; pyproject.toml reads this file."""

__version__ = "0.1.0"
