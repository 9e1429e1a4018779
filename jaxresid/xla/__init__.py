"""Compile programs ahead of time with XLA, for devices of this machine or for a TPU topology."""
