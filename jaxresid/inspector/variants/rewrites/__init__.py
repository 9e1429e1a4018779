"""Find what a program could compute with less memory, and rewrite it so."""
