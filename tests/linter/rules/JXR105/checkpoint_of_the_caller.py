def save(checkpoint, state):
    checkpoint(state)
