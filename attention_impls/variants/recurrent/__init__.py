"""Decayed, gated and delta-rule linear attention with a state."""
