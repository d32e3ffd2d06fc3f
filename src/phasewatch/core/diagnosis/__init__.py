"""Figures -> symptoms, causes, verdicts."""
