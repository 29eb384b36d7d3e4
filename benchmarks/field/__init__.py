"""The animal-ecology pipeline: ingestion, transfers and the season of the field station."""
