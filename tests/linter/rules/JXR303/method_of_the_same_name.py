import jax


class Saver:
    def checkpoint_name(self, step):
        self.last = step

    def save(self, step):
        self.checkpoint_name(step)
