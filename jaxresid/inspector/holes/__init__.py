"""What a program differentiates, and the program with something else in its place."""
