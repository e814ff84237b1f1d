"""Biases, rotations and positions that depend on data."""
