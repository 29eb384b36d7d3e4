"""Turn a choice into a batch script or a local run, and measure it."""
