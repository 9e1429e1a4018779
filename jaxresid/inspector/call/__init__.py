"""The call that is asked about: the question, its arguments and inputs, what it may change."""
