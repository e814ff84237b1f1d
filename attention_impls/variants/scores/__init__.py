"""Logit functions and row normalisers."""
