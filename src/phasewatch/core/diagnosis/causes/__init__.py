"""One cause, one file."""
