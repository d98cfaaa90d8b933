"""What a person or a program sees of a run. Reads events only, never the engine."""
