def make(cp):
    return cp.save_anything_except_these_names("checkpoint")
