"""Peers: one file is one outside library, as implementations of our variants."""
