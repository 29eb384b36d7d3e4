"""Nearly nothing."""
print(1)
