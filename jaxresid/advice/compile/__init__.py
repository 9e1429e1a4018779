"""Compile a traced function ahead of time and report what XLA says."""
