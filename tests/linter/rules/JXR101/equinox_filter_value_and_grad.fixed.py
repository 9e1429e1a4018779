import equinox as eqx


@eqx.filter_value_and_grad
def loss(model, x):
    return model(x).sum()
