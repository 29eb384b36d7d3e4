"""What proves an adapter: real services for the length of a test, and the contract of every plug point."""
