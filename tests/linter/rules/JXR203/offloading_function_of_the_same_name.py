def save_and_offload_only_these_names(names_which_can_be_saved):
    return names_which_can_be_saved


policy = save_and_offload_only_these_names(names_which_can_be_saved="hidden")
