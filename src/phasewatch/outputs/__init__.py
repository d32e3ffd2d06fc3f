"""Forms in which what is known leaves phasewatch."""
