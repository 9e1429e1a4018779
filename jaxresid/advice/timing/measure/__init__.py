"""Run variants of a function on the local device to time and compare them."""
