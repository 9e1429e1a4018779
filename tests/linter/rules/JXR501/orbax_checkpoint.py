import orbax.checkpoint as ocp


manager = ocp.checkpoint(directory=None)
