"""The report in its formats, and the blocks of text that other outputs share with it."""
