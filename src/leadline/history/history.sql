CREATE TABLE run (
    id TEXT PRIMARY KEY,
    started_at TEXT NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    host TEXT,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX run_started_at ON run (started_at);
CREATE INDEX run_name ON run (name);
