"""Build programs of ops and values from jaxprs, and work out what they cost and move."""
