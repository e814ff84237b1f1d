"""Runs on disk: the only place that opens files under results/. Standard library only.

`<results>/<machine>/<run>.jsonl`, one writer each, and `<results>/baselines/<machine>.jsonl`. A file is JSON
lines: a header, records, an end. Stored runs are data from strangers: everything is limited and checked.
"""

from bench.store.naming import baseline, baseline_path, find, results_folder, run_ids, set_baseline
from bench.store.reading import Run, check_id, read_run
from bench.store.writing import Writer

__all__ = [
    "Run",
    "Writer",
    "baseline",
    "baseline_path",
    "check_id",
    "find",
    "read_run",
    "results_folder",
    "run_ids",
    "set_baseline",
]
