"""The nouns every room shares: frozen values, units, the error tree and the ports."""
