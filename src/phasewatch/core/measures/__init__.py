"""Snapshots -> what changed in a window, and the figures of it. Nothing is judged."""
