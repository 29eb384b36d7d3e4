"""The REST API and the web page: the tools over HTTP, for one user."""
