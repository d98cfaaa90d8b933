"""Auditing a run: its files against its checkpoint, and each token against what the model chooses."""
