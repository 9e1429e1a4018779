"""What every room builds on: errors, Ctrl-C, text, files, caches, types of options, findings."""
