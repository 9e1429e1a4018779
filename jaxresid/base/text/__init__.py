"""Text for people and other programs: sizes, names, suggestions, and nothing that does harm."""
