"""Say what a log of a program that ran out of memory means, and what to try."""
