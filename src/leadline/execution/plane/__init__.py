"""The Intelligence Plane: jobs handed over, followed to their end, and corrected on the way."""
