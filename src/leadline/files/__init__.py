"""Files shared by several rooms: SQLite, locks, atomic writes."""
