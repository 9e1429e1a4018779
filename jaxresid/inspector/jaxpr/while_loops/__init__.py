"""Tell how often while loops run, and what checkpointed ones run again."""
