"""`attnbench list`: what there is to choose from."""

from __future__ import annotations

import click

WHAT = ("variants", "implementations", "transforms", "layers", "metrics", "suites", "devices", "models", "commands")


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in WHAT if word.startswith(incomplete)]


@click.command("list", short_help="List variants, implementations, suites, metrics, …")
@click.argument("what", default="variants", shell_complete=_complete)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
@click.option("--markdown", is_flag=True, help="Print Markdown; of variants, the whole page docs/catalogue.md.")
@click.pass_context
def list_(ctx: click.Context, what: str, as_json: bool, markdown: bool) -> None:
    """Lists WHAT there is: variants (by family), implementations, transforms, layers, metrics, suites, devices,
    models or commands. What is absent on this machine is listed with the command that helps."""
    from bench import console
    from bench.errors import UserError, unknown
    from bench.inventory import NOUNS

    if what not in WHAT:
        raise unknown("list", what, WHAT)
    if as_json and markdown:
        raise UserError("--json and --markdown are two answers; ask for one of them")
    if markdown and what == "variants":
        from bench.catalogue_page import page

        console.out(page())
        return
    rows = _commands(ctx) if what == "commands" else NOUNS[what]()
    if as_json:
        console.json_out(rows)
        return
    if not rows:
        console.out(f"no {what} yet")
        return
    if markdown:
        from bench.markdown import escape, table

        console.out(table(list(rows[0]), [[escape(cell) for cell in row.values()] for row in rows]))
        return
    absent = [(row["variant"], why) for row in rows for why in row.pop("absent", "").splitlines()]
    console.table(list(rows[0]), [list(row.values()) for row in rows])
    for name, why in absent:
        console.out(f"absent here: {name}.{why}")


def _commands(ctx: click.Context) -> list[dict[str, str]]:
    group = ctx.find_root().command
    if not isinstance(group, click.Group):
        return []
    found = ((name, group.get_command(ctx, name)) for name in group.list_commands(ctx))
    return [{"command": name, "does": command.get_short_help_str(120)} for name, command in found if command]


COMMAND = list_
