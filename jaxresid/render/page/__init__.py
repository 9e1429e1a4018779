"""Results as one page of HTML, which needs no network and nothing else."""
