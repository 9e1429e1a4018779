"""Report the findings of a traced function as violations at the user's lines."""
