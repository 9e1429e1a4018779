"""Read protocol buffers and messages of XLA: HLO modules, buffer assignments, memory errors."""
