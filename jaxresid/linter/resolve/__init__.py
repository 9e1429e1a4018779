"""What the code of a module refers to: names, checkpoint sites, and where their values go."""
