"""Tables for a terminal: comparisons of policies, plans and sweeps."""
