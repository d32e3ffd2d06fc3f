"""What only developers run; not in the wheel."""
