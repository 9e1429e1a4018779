"""Where a traced fact becomes advice."""
