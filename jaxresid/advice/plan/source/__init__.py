"""Turn a plan into an edit of the user's source."""
