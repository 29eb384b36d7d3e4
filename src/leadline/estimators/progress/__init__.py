"""The end of a running job, predicted from its progress."""
