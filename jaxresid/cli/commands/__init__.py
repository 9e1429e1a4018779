"""Define the commands, one module each, imported when they are called."""
