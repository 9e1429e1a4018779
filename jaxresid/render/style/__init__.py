"""Pieces that the text renderers share: words for values, columns of figures, wrapping."""
