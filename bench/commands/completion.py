"""`attnbench completion`: the script that teaches a shell to complete this program's words."""

from __future__ import annotations

import click


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Prints the completion script for SHELL: commands, options, names of subjects, suites, models and runs.

    \b
    bash  eval "$(attnbench completion bash)" in ~/.bashrc
    zsh   eval "$(attnbench completion zsh)" in ~/.zshrc
    fish  attnbench completion fish > ~/.config/fish/completions/attnbench.fish
    """
    from bench import console
    from bench.cli import completer

    console.out(completer(shell).source())


COMMAND = completion
