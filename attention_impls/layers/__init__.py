"""Layers: one file is one module with projections around any implementation, named LAYER."""
