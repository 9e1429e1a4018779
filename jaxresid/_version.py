"""The version of the package, stated only here; pyproject.toml reads this file."""

__version__ = "0.1.0"
