"""What XLA says: programs compiled ahead of time, for devices here or a topology that is not."""
