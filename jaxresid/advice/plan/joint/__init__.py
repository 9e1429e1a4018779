"""One search over batch sizes, microbatches, meshes and checkpoints."""
