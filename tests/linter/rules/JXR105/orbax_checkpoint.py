import orbax.checkpoint as ocp


def save(c, t):
    ocp.checkpoint(t)
