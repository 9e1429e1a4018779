"""Results as notebooks show them: the answer, a picture, and all else folded, without scripts."""
