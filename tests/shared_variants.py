"""One function for many plans: what several of them try is traced once."""


def sharing_variants(found):
    """Return the subject with one set of variants for all its plans, each of which is made once."""
    variants, made = found.variants(), {}
    variant = variants.variant

    def once(choices):
        key = frozenset(choices.items())
        if key not in made:
            made[key] = variant(choices)
        return made[key]

    variants.variant = once
    vars(found)["variants"] = lambda: variants  # the subject is frozen
    return found
