"""The JSON documents of results: written, saved and loaded."""
