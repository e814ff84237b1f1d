"""Variants by family: one file (or package) is one mechanism and its implementations."""
