"""Transforms: one file is one memory or number optimisation, named TRANSFORM."""
