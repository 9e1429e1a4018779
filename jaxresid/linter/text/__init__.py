"""The text of linted files: decoding, parsing, positions, notebooks and suppression comments."""
