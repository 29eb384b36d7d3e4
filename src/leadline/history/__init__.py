"""The store of measured runs."""
