"""`attnbench completion`: the script that teaches a shell to complete this program's words."""

from __future__ import annotations

import click

from bench.completion import completer


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints the completion script for SHELL: commands, options, names of subjects, suites, models and runs.

    \b
    bash  eval "$(attnbench completion bash)" in ~/.bashrc
    zsh   eval "$(attnbench completion zsh)" in ~/.zshrc
    fish  attnbench completion fish > ~/.config/fish/completions/attnbench.fish
    """
    from bench import console

    console.out(completer(ctx.find_root().command, shell).source())


COMMAND = completion
