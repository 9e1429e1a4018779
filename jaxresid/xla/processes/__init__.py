"""Run compiles in processes of their own, here or on a cluster, with a cache of their results."""
