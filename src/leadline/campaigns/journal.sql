CREATE TABLE planned (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    spec TEXT NOT NULL,
    document TEXT NOT NULL,
    discarded INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE outcome (
    attempt TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    document TEXT NOT NULL,
    stored INTEGER NOT NULL DEFAULT 0
) STRICT;
