"""`attnbench doctor`: what this machine can measure and what disturbs it."""

from __future__ import annotations

import click


@click.command("doctor", short_help="Say what this machine can measure and what disturbs it.")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
def doctor(as_json: bool) -> None:
    """Says what can be measured on this machine, what cannot and which command helps, and what spoils numbers now.

    Looks, and changes nothing; takes a second. Always exits 0: it reports, others decide.
    """
    from dataclasses import asdict

    from bench import console
    from bench.doctor import examine

    found = examine()
    if as_json:
        console.json_out([asdict(finding) for finding in found])
        return
    console.table(["", "", "", "what helps"], [[f.topic, f.state, f.text, f.advice] for f in found])
    troubles = [f.topic for f in found if f.state == "disturbed"]
    if troubles:
        console.out(f"Times measured now are disturbed by: {', '.join(troubles)}. Memory and errors are exact anyway.")
    else:
        console.out("Nothing disturbs this machine now.")


COMMAND = doctor
