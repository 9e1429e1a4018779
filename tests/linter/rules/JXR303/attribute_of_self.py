from jax import ad_checkpoint as adc


class Block:
    def __call__(self, x):
        if self.named:
            adc.checkpoint_name(self.state, name="state")  # !
        return self.state * x
