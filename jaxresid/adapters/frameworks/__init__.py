"""The adapters of our own frameworks, one module each, by the name of the framework."""
