"""`attnbench show`: everything about one thing."""

from __future__ import annotations

import click

from bench.completion import names


@click.command("show", short_help="Tell everything about one subject, variant, suite, model or metric.")
@click.argument("name", shell_complete=names)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")
def show(name: str, as_json: bool) -> None:
    """Tells what NAME is: a subject such as softmax.naive+query_chunks:128, a variant, transform, layer, metric,
    suite, device or model; its text, parameters, support, options, and commands to try."""
    from dataclasses import asdict

    from bench import console
    from bench.describe import describe

    found = describe(name)
    if as_json:
        console.json_out([asdict(item) for item in found])
        return
    for item in found:
        console.out(f"{item.kind} {item.name}\n")
        if item.text:
            console.out(f"{item.text}\n")
        width = max((len(fact) for fact in item.facts), default=0)
        for fact, value in item.facts.items():
            console.out(f"  {fact:<{width}}  {value}")
        console.out("\ntry:")
        for example in item.examples:
            console.out(f"  {example}")


COMMAND = show
