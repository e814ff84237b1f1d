"""What the shell offers for an argument: names of stored runs, and of everything that `show` can tell of."""

from __future__ import annotations

import click


def runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Runs in the results folder that begin so, newest names last, and the words that stand for runs."""
    from bench.store import results_folder, run_ids

    words = ["latest", "baseline", *run_ids(results_folder(ctx.params.get("results")))]
    return [word for word in words if word.startswith(incomplete)]


def names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Subjects, variants, transforms, layers, metrics, suites, devices and models that begin so."""
    from bench.describe import names as everything

    return [name for name in everything() if name.startswith(incomplete)]
