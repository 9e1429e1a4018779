"""Hand a plan on: as a policy in Python, and as the settings of frameworks."""
