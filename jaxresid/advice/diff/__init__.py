"""What two reports say differently: `diff` in `difference.py`, a pure function of both."""
