"""The commands of the server: what runs the user's code, when a person asks for it."""
