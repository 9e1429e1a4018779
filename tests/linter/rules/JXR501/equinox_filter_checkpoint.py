import equinox as eqx


@eqx.filter_checkpoint(prevent_cse=False)
def block(m, x):
    return m(x)
