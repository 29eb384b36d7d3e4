"""Answers as files of other tools: tables, workflow snippets, a report to mail, an Open OnDemand app."""
