"""The functions that a user names, and the arguments to call them with."""
