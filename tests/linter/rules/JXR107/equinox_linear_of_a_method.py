import equinox as eqx


class Head(eqx.Module):
    out: eqx.nn.Linear

    @eqx.filter_checkpoint  # !
    def logits(self, x):
        return self.out(x)
