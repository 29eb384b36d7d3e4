"""Every promised figure, measured again."""
