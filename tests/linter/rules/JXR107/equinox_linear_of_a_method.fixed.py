import equinox as eqx


class Head(eqx.Module):
    out: eqx.nn.Linear

    def logits(self, x):
        return self.out(x)
