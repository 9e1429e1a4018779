"""The report on a program that ran out of memory, as text and as JSON."""
