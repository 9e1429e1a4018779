"""Running the linter: finding files, linting and fixing them, and caching results."""
