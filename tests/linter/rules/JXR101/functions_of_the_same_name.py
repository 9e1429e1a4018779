def grad(f):
    return f


def step(checkpoint, loss):
    return grad(checkpoint(loss))
