"""Complete command lines in bash, zsh and fish."""
