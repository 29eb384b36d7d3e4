"""``leadline bench memory``: peaks that real steps had, foretold, and bounded."""
