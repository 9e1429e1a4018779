def save_anything_except_these_names(*names):
    return names


policy = save_anything_except_these_names("hidden")
