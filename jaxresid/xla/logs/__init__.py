"""Read logs of programs that ran out of memory, and the dumps that XLA makes of them."""
