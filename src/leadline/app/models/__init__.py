"""Models trained on measured runs: train, query, retrain."""
