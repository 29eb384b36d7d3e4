"""Commands and files on this machine or over SSH."""
