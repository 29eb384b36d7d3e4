"""Public training scripts at fixed commits: fetched, counted in real runs, and traced."""
