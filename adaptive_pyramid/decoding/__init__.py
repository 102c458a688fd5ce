"""The stepping engine: proposing, verifying, drift. Knows nothing of control."""
