"""Results as tables: rows for each residual, their sums by line or module, pandas DataFrames."""
