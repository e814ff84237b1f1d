"""The rules of the house that a syntax tree can tell: each a function of one file that names what offends.

A rule is (path from the root, text, tree) -> sentences. `attention_impls` and `bench` are held to them, tests are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench", "attention_impls")
Rule = Callable[[str, str, ast.Module], list[str]]

STEP_CLOCKS = {"perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns"}
MEMORY_ERRORS = {"OutOfMemoryError", "MemoryError"}
PROCESS_CONTROL = {"kill", "killpg", "setsid", "setpgid", "setpgrp", "setrlimit", "prlimit", "sethandler"}
PROCESS_KEYWORDS = {"start_new_session", "process_group", "preexec_fn"}
GENERATORS = {"Generator", "manual_seed", "seed_all", "manual_seed_all", "fork_rng", "default_rng", "RandomState"}
DATA_THAT_RUNS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS_THAT_RUN = {"eval", "exec", "compile", "__import__"}
LIGHT_IMPORTS = {"click", "bench.errors", "bench.options", "bench.completion"}

LONGEST_FILE, LONGEST_FUNCTION = 250, 40


def sources() -> list[Path]:
    """Every file of the two packages, tests left out."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [path for path in found if "tests" not in path.relative_to(ROOT).parts]


def offences(rule: Rule) -> list[str]:
    """What a rule finds in the whole house."""
    return [text for path in sources() for text in check(rule, str(path.relative_to(ROOT)), path.read_text("utf-8"))]


def check(rule: Rule, path: str, text: str) -> list[str]:
    """What a rule finds in one file."""
    return rule(path, text, ast.parse(text, path))


def dotted(node: ast.AST) -> str:
    """The name that an expression spells, as in torch.cuda.Event; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return ""


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every imported name in full, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, f"{node.module}.{name.name}") for name in node.names)


def spoken(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every name and attribute that is used, spelt out, and every import."""
    yield from imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node, dotted(node)


def lines(path: str, found: list[tuple[ast.AST, str]], why: str) -> list[str]:
    """Sentences with file and line, one a place."""
    places = {(getattr(node, "lineno", 0), text) for node, text in found}
    return [f"{path}:{line}: {text}: {why}" for line, text in sorted(places)]


def inside(path: str, *rooms: str) -> bool:
    """True for a file that is one of the rooms, or lies in one."""
    return any(path == room or path.startswith(f"{room}/") for room in rooms)


def cuda_only_in_devices(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "bench/devices"):
        return []
    found = [(node, name) for node, name in spoken(tree) if name == "torch.cuda" or name.startswith("torch.cuda.")]
    return lines(path, found, "a device is asked only in bench/devices/")


def step_clocks_only_in_devices(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "bench/devices"):
        return []
    found = [
        (n, name) for n, name in spoken(tree) if name.split(".")[-1] in STEP_CLOCKS or name.split(".")[0] == "timeit"
    ]
    return lines(path, found, "a step is timed only in bench/devices/; deadlines take time.monotonic")


def memory_errors_only_in_devices(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "bench/devices"):
        return []
    found = [(node, name) for node, name in spoken(tree) if name.split(".")[-1] in MEMORY_ERRORS]
    return lines(path, found, "a device says whether an error means that memory ran out")


def processes_only_in_their_rooms(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "bench/supervisor.py", "bench/child.py", "bench/worker.py"):
        return []
    found: list[tuple[ast.AST, str]] = [
        (node, name)
        for node, name in spoken(tree)
        if name == "signal" or name.startswith(("signal.", "os.RLIMIT", "resource.RLIMIT"))
        or (name.startswith(("os.", "resource.")) and name.split(".")[-1] in PROCESS_CONTROL)
    ]  # fmt: skip
    found += [(n.value, str(n.arg)) for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg in PROCESS_KEYWORDS]
    return lines(path, found, "signals, limits and process groups only in supervisor.py, child.py and worker.py")


def generators_only_in_inputs(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "attention_impls/inputs.py"):
        return []
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found: list[tuple[ast.AST, str]] = [(c, dotted(c)) for c in calls if dotted(c).split(".")[-1] in GENERATORS]
    found += [(c, dotted(c)) for c in calls if dotted(c).startswith(("np.random.", "numpy.random."))]
    return lines(path, found, "random generators are made only in attention_impls/inputs.py, one per name")


def terminals_only_in_console(path: str, text: str, tree: ast.Module) -> list[str]:
    if inside(path, "bench/console.py"):
        return []
    words = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "click.echo", "click.secho", "click.style")
    found = [(n, name) for n, name in spoken(tree) if name in words or name.split(".")[0] == "rich"]
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    found += [(call, dotted(call)) for call in calls if dotted(call) in ("print", "pprint", "click.prompt", "input")]
    return lines(path, found, "only bench/console.py writes to a terminal")


def runs_only_in_store(path: str, text: str, tree: ast.Module) -> list[str]:
    """Run files end with .jsonl: whoever spells that opens them, or tells somebody how."""
    if inside(path, "bench/store"):
        return []
    spelt = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    told = docstrings(tree)
    found: list[tuple[ast.AST, str]] = [(n, ".jsonl") for n in spelt if n not in told and ".jsonl" in n.value]
    for node in ast.walk(tree):
        joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and is_text(node.right, "results")
        called = (
            isinstance(node, ast.Call)
            and dotted(node.func) == "Path"
            and node.args
            and is_text(node.args[0], "results")
        )
        if joined or called:
            found.append((node, "results/"))
    return lines(path, found, "only bench/store opens files under results/; ask it for the folder")


def is_text(node: ast.AST, beginning: str) -> bool:
    """True for a text constant that is `beginning` or a path below it."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split("/")[0] == beginning


def docstrings(tree: ast.AST) -> list[ast.Constant]:
    """The constants that are docstrings."""
    owners = (
        n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    first = (owner.body[0] for owner in owners if owner.body)
    return [s.value for s in first if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]


def drawing_only_in_report(path: str, text: str, tree: ast.Module) -> list[str]:
    names = [(node, name) for node, name in imported(tree) if name.split(".")[0] in ("matplotlib", "seaborn", "plotly")]
    if inside(path, "bench/report"):
        names = [(node, name) for node, name in names if "pyplot" in name or "pylab" in name]
        return lines(path, names, "pyplot keeps figures of the whole process: draw on a Figure of your own")
    return lines(path, names, "drawing only under bench/report/")


def data_does_not_run(path: str, text: str, tree: ast.Module) -> list[str]:
    found = [(node, name) for node, name in imported(tree) if name.split(".")[0] in DATA_THAT_RUNS]
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    found += [(call, dotted(call)) for call in calls if dotted(call) in (*CALLS_THAT_RUN, "torch.load", "yaml.load")]
    return lines(path, found, "stored data is read as data, never run")


def no_broad_silence(path: str, text: str, tree: ast.Module) -> list[str]:
    """An `except` for everything that does nothing, or suppress(Exception)."""
    broad = {"", "Exception", "BaseException"}
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and dotted(node.type or ast.Name("")) in broad:
            silent = all(isinstance(s, ast.Pass | ast.Continue) or is_ellipsis(s) for s in node.body)
            if silent or node.type is None:
                found.append((node, "except"))
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "suppress":
            found += [(node, "suppress") for argument in node.args if dotted(argument) in broad]
    return lines(path, found, "an error is told, or one kind of it is handled; never every kind in silence")


def is_ellipsis(statement: ast.stmt) -> bool:
    """True for a lone `...`."""
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and statement.value.value is ...
    )


def commands_import_little(path: str, text: str, tree: ast.Module) -> list[str]:
    """`attnbench --help` imports every command: what a command needs it imports when it runs."""
    import sys

    if not inside(path, "bench/commands"):
        return []
    top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    modules = [(n, n.module or "") if isinstance(n, ast.ImportFrom) else (n, name) for n, name in imported(top)]
    found = [(n, m) for n, m in modules if m not in LIGHT_IMPORTS and m.split(".")[0] not in sys.stdlib_module_names]
    return lines(path, found, f"import it inside the function; at the top only {', '.join(sorted(LIGHT_IMPORTS))}")


def no_catch_all_modules(path: str, text: str, tree: ast.Module) -> list[str]:
    parts = Path(path).with_suffix("").parts
    found = {"utils", "util", "common", "helpers", "misc"} & set(parts)
    return [f"{path}: {name}: put it with its caller, or in the lowest file that both may import" for name in found]


def no_promises_no_banners(path: str, text: str, tree: ast.Module) -> list[str]:
    marks = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b|^\s*#\s*[-=#*~_]{4,}")
    numbered = enumerate(text.splitlines(), 1)
    return [
        f"{path}:{n}: {line.strip()}: do it, or say why not; no banners" for n, line in numbered if marks.search(line)
    ]


def long_files(path: str, text: str, tree: ast.Module) -> list[str]:
    return [path] if len(text.splitlines()) > LONGEST_FILE else []


def long_functions(path: str, text: str, tree: ast.Module) -> list[str]:
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f"{path}::{f.name}" for f in functions if (f.end_lineno or 0) - f.lineno + 1 > LONGEST_FUNCTION]


# The noun that each folder is for; a file of it without the noun is no entrant.
NOUNS: dict[str, tuple[str, ...]] = {
    "bench/commands": ("COMMAND",),
    "bench/metrics": ("METRICS",),
    "bench/devices": ("DEVICE",),
    "bench/report/sections": ("SECTION",),
    "attention_impls/transforms": ("TRANSFORM",),
    "attention_impls/layers": ("LAYER",),
    "attention_impls/peers": ("IMPLEMENTATIONS", "implementations"),
    "attention_impls/variants": ("IMPLEMENTATIONS", "implementations"),
}


def folders_hold_their_noun(path: str, text: str, tree: ast.Module) -> list[str]:
    folder = next((folder for folder in NOUNS if inside(path, folder)), None)
    if folder is None or Path(path).name == "__init__.py" or in_a_package_with_the_noun(path, folder):
        return []
    if defines(tree, NOUNS[folder]):
        return []
    return [f"{path}: expected {' or '.join(NOUNS[folder])}, which is what {folder}/ is for"]


def in_a_package_with_the_noun(path: str, folder: str) -> bool:
    """A file beside an __init__.py that holds the noun is a part of that entrant."""
    beside = ROOT / Path(path).parent / "__init__.py"
    if str(Path(path).parent) == folder or not beside.is_file():
        return False
    return defines(ast.parse(beside.read_text("utf-8")), NOUNS[folder])


def defines(tree: ast.Module, nouns: tuple[str, ...]) -> bool:
    """True where one of the names is bound at the top of the file."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if isinstance(node, ast.FunctionDef) and node.name in nouns:
            return True
        if any(isinstance(target, ast.Name) and target.id in nouns for target in targets):
            return True
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) in nouns for alias in node.names):
            return True
    return False
