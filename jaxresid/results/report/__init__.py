"""A report, and what it is made of."""
