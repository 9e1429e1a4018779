"""Make reports elsewhere: of another revision, by another interpreter, under other flags of JAX.

Each is traced in a process of its own, so that nothing of one side is imported on the other.
"""
