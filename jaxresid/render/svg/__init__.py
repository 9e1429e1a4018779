"""Static pictures of results: self-contained SVG without scripts, for light and dark pages."""
