"""Plan and run pipelines."""
