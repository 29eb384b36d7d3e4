"""PyTorch front-end: a script or a model function becomes an op graph, with no GPU and no change to the code."""
