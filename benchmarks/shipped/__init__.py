"""The making of the models that come with Leadline: fits, cards and the writing of their files."""
