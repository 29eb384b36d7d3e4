"""Error metrics and interval arithmetic."""
