"""Runs on disk: the only place that opens files under results/. Standard library only.

`<results>/<machine>/<run>.jsonl`, one writer each, and `<results>/baselines/<machine>.jsonl`; noise
floors and comparisons are single JSON files beside them. A file is JSON
lines: a header, records, an end. Stored runs are data from strangers: everything is limited and checked.
"""

from bench.store.comparisons import find_comparison, read_comparison, save_comparison
from bench.store.history import (
    Accepted,
    Night,
    history_path,
    machines,
    newest_machine,
    read_accepted,
    update,
    write_accepted,
)
from bench.store.naming import baseline, baseline_path, find, results_folder, run_ids, set_baseline
from bench.store.noise import Noise, Session, noise_path, read_noise, write_noise
from bench.store.reading import Run, check_id, read_run
from bench.store.writing import Writer

__all__ = [
    "Accepted",
    "Night",
    "Noise",
    "Run",
    "Session",
    "Writer",
    "baseline",
    "baseline_path",
    "check_id",
    "find",
    "find_comparison",
    "history_path",
    "machines",
    "newest_machine",
    "noise_path",
    "read_accepted",
    "read_comparison",
    "read_noise",
    "read_run",
    "results_folder",
    "run_ids",
    "save_comparison",
    "set_baseline",
    "update",
    "write_accepted",
    "write_noise",
]
