"""The ways a command can fail, with their exit codes.

    AttnbenchError
    ├── UserError      exit 2: the user's mistake; the message says what is possible
    └── CannotDo       exit 3: asked rightly, but it cannot be done here and now

Exit 1 is no error but a finding (a regression, a wrong cell under --strict).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnbenchError(Exception):
    """A failure whose message is meant for the person at the terminal."""

    exit_code = 3


class UserError(AttnbenchError):
    """What was asked makes no sense; the message names what would."""

    exit_code = 2


class CannotDo(AttnbenchError):
    """What was asked makes sense but cannot be done; the message says why."""

    exit_code = 3


def unknown(kind: str, word: str, known: Iterable[str]) -> UserError:
    """A UserError for a misspelt word: names the nearest known one, or lists what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return UserError(f"no {kind} called {word!r}; {hint}")
