"""Turn measured runs into a fitted estimator with its card."""
