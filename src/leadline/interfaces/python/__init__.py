"""The Python API: the verbs of the command line as functions, and handles for submitted jobs."""
