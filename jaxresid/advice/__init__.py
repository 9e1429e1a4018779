"""Turn what a trace shows into advice: checks, comparisons, plans, compiles and sweeps."""
