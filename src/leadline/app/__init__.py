"""One function for each verb; the composition root; settings."""
