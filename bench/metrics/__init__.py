"""Metrics: one file each, holding METRICS; `bench.metrics.all_metrics` walks the folder."""
