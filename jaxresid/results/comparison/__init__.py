"""Programs beside each other: policies, sizes and revisions."""
