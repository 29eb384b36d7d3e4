"""Plan and make scaled-down and full-scale runs of an application under a budget."""
