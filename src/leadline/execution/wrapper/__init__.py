"""The measuring wrapper: runs one command as a child, measures it, enforces its limits and stores the outcome."""
