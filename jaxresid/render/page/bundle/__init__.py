"""The page's script and style, which `npm run bundle` in page/ makes, and their licences."""
