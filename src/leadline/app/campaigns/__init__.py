"""Plan and run campaigns of scaled-down and full-scale runs."""
