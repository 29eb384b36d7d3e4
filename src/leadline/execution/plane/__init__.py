"""The Intelligence Plane: the process that submits jobs, watches them to their end and corrects them on the way."""
