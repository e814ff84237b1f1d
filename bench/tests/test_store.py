"""Run files: nothing lost, nothing twice, nothing torn; strangers' files; and which run a name means."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import store
from bench.errors import CannotDo, UserError
from bench.record import RunEnd, to_json
from bench.store import reading, writing
from bench.tests.data import make_runs
from bench.tests.data.make_runs import AFTER, BEFORE, MACHINE, header, record

DATA = Path(make_runs.__file__).parent
GROUP = [record(subject, 128) for subject in make_runs.SECONDS]
OTHER = [record(subject, 256) for subject in make_runs.SECONDS]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(DATA / MACHINE, tmp_path / MACHINE)
    return tmp_path


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[store.Writer]:
    with store.Writer.create(tmp_path, header([*GROUP, *OTHER])) as opened:
        yield opened


def line(data: Any) -> bytes:
    return json.dumps(to_json(data)).encode() + b"\n"


# Writing and reading


def test_what_is_written_is_read_in_order_and_says_whether_it_is_finished(writer: store.Writer) -> None:
    writer.append(GROUP)
    assert (writer.run().records, writer.run().finished) == (tuple(GROUP), False)
    writer.append(OTHER)
    writer.finish(5.0)
    run = store.read_run(writer.path)
    assert (run.header, run.records, run.finished) == (header([*GROUP, *OTHER]), (*GROUP, *OTHER), True)
    assert (run.machine, run.path) == (MACHINE, writer.path)
    assert writer.path.parent.name == MACHINE
    assert writer.path.stem == BEFORE


def test_a_run_never_overwrites_another(writer: store.Writer, tmp_path: Path) -> None:
    with pytest.raises(CannotDo, match="never overwrites"):
        store.Writer.create(tmp_path, header([]))
    assert store.read_run(writer.path).header == header([*GROUP, *OTHER])


def test_a_group_is_one_write(writer: store.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: sizes.append(len(data)) or write(fd, data))
    writer.append(GROUP)
    assert len(sizes) == 1


def test_of_retries_the_last_counts_but_an_ok_stands(writer: store.Writer) -> None:
    crashed, timeout = (
        record("softmax.naive", 128, outcome=outcome, readings={}) for outcome in ("crashed", "timeout")
    )
    right = record("softmax.naive", 128)
    for attempt in (crashed, timeout):
        writer.append([attempt])
        assert writer.run().records == (attempt,)
    for attempt in (right, crashed):
        writer.append([attempt])
        assert writer.run().records == (right,)
    writer.append([right])
    writer.finish(1.0)
    assert writer.path.read_bytes().count(b'"kind":"record"') == 3
    assert store.read_run(writer.path).finished


def test_a_file_in_which_a_retry_follows_an_ok_is_read_with_the_ok(tmp_path: Path) -> None:
    path = tmp_path / "merged.jsonl"
    retried = record("softmax.naive", 128, outcome="crashed", readings={})
    path.write_bytes(line(header([])) + line(retried) + line(GROUP[1]) + line(retried))
    assert store.read_run(path).records == (GROUP[1],)


def test_the_second_writer_of_a_file_is_refused_with_the_pid_of_the_first(writer: store.Writer) -> None:
    with pytest.raises(CannotDo, match=rf"being written by another run \(pid ({os.getpid()}|unknown)\)"):
        store.Writer.resume(writer.path)
    writer.close()
    writer.close()
    store.Writer.resume(writer.path).close()


# Torn writes and full disks


@pytest.mark.parametrize("keep", [1, 7, 500, 4000])
def test_a_torn_last_line_is_left_out_when_read_and_cut_off_when_resumed(writer: store.Writer, keep: int) -> None:
    writer.append(GROUP)
    writer.close()
    whole = writer.path.read_bytes()
    writer.path.write_bytes(whole + b"".join(map(line, OTHER))[:keep])
    seen = store.read_run(writer.path)
    assert seen.records[: len(GROUP)] == tuple(GROUP)
    with store.Writer.resume(writer.path) as again:
        assert again.path.read_bytes().endswith(b"\n")
        assert again.run().records == seen.records
        again.append(OTHER)
        again.finish(1.0)
    done = store.read_run(writer.path)
    assert (done.records, done.finished) == ((*GROUP, *OTHER), True)


def test_what_a_torn_write_left_of_a_group_is_replaced_by_the_whole_group(writer: store.Writer) -> None:
    """Else the reference's rounds of one attempt would divide the contender's of another."""
    writer.append(GROUP)
    writer.append(OTHER[:2])
    writer.close()
    again = [record(subject, 256, hour=2.0) for subject in make_runs.SECONDS]
    with store.Writer.resume(writer.path) as resumed:
        resumed.append(again)
        assert resumed.run().records == (*GROUP, *again)


def test_a_finished_group_survives_the_retry_of_one_of_its_cells(writer: store.Writer) -> None:
    writer.append([*OTHER[:3], record("linear.chunked", 256, outcome="timeout", readings={})])
    writer.close()
    with store.Writer.resume(writer.path) as resumed:
        resumed.append([OTHER[3]])
        assert resumed.run().records == tuple(OTHER)


def test_a_run_without_a_whole_first_line_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content in (b"", line(header([]))[:-1]):
        path.write_bytes(content)
        with pytest.raises(CannotDo, match="not even its first line"):
            store.read_run(path)


def test_a_short_write_is_rolled_back_and_said(writer: store.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.append(GROUP)
    before, write = writer.path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    with pytest.raises(CannotDo, match="bytes fitted; make room"):
        writer.append(OTHER)
    monkeypatch.undo()
    assert writer.path.read_bytes() == before
    writer.append(OTHER)
    assert writer.run().records == (*GROUP, *OTHER)


def test_a_full_disk_is_rolled_back_and_said(writer: store.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.append(GROUP)
    before = writer.path.read_bytes()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CannotDo, match="the disk is full"):
        writer.append(OTHER)
    assert writer.path.read_bytes() == before


def test_a_limit_on_the_files_size_cuts_no_line(writer: store.Writer) -> None:
    """The kernel itself writes short here: half of the group would fit."""
    writer.append(GROUP)
    before = writer.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3000, hard))
        with pytest.raises(CannotDo, match="fitted"):
            writer.append(OTHER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert writer.path.read_bytes() == before


def test_a_header_that_does_not_fit_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(CannotDo, match="fitted"):
        store.Writer.create(tmp_path, header([]))
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotDo, match=r"read-only; choose another folder with --results"):
        store.Writer.create(tmp_path, header([]))
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotDo, match="cannot be written"):
        store.Writer.create(tmp_path / "file", header([]))


def test_a_line_that_could_not_be_read_again_is_not_written(
    writer: store.Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_LINE", 100)
    with pytest.raises(CannotDo, match="could not be read again"):
        writer.append(GROUP)
    assert writer.run().records == ()


# Processes

CHILD = """
import sys, dataclasses
from pathlib import Path
from bench.store import Writer
from bench.tests.data.make_runs import header, record
results, run, resume = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "resume"
if resume:
    writer = Writer.resume(results / "quartz-2c-8g-0001" / f"{run}.jsonl")
else:
    writer = Writer.create(results, header([], run))
print("ready", flush=True)
done = len(writer.run().records)
model = record("softmax.naive", 1, rounds=int(sys.argv[4]))
for n in range(done + 1, 1 + int(sys.argv[5])):
    key = dataclasses.replace(model.key, cell=f"cell{n}")
    writer.append([dataclasses.replace(model, key=key, cell={"group": n, "q_len": n})])
"""


def child(results: Path, run: str, how: str, rounds: int, lines: int = 10_000) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(results), run, how, str(rounds), str(lines)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=DATA.parents[2])
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.parametrize("rounds", [15, 2000], ids=["lines of 2 kB", "lines of 200 kB"])
def test_sigkill_at_any_moment_loses_no_record_and_none_is_there_twice(tmp_path: Path, rounds: int) -> None:
    kept = 0
    path = tmp_path / MACHINE / "r.jsonl"
    for attempt in range(6):
        running = child(tmp_path, "r", "resume" if attempt else "create", rounds)
        time.sleep(0.1 + 0.037 * attempt)
        running.kill()
        running.communicate()
        records = store.read_run(path).records
        assert len(records) >= kept
        kept = len(records)
        assert [r.cell["q_len"] for r in records] == list(range(1, kept + 1))
        assert path.read_bytes().count(b'"kind":"record"') - kept in (0, 1)  # a torn one is not yet cut off
    assert kept > 6


def test_eight_processes_in_one_folder_write_eight_files(tmp_path: Path) -> None:
    running = [child(tmp_path, f"r{i}", "create", 15, lines=20) for i in range(8)]
    for process in running:
        process.communicate()
        assert process.returncode == 0
    assert {run: len(store.read_run(path).records) for run, path in store.run_ids(tmp_path).items()} == {
        f"r{i}": 20 for i in range(8)
    }


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    running = child(tmp_path, "r", "create", 15)
    try:
        with pytest.raises(CannotDo, match="being written by another run"):
            store.Writer.resume(tmp_path / MACHINE / "r.jsonl")
    finally:
        running.kill()
        running.communicate()


# Strangers' files

FIRST = line(header([]))
ONE = line(record("softmax.naive", 128))
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a bad line in the middle": (lambda: FIRST + b"{\n" + ONE, "line 2: not strict JSON"),
    "an empty line in the middle": (lambda: FIRST + b"\n" + ONE, "line 2: not strict JSON"),
    "a torn line that another followed": (lambda: FIRST + ONE[:50] + ONE, "line 2: not strict JSON"),
    "a NaN literal": (lambda: FIRST + ONE.replace(b"[4, 4", b"[NaN, 4", 1), "literal NaN"),
    "an Infinity literal": (lambda: FIRST + ONE.replace(b"[4, 4", b"[-Infinity, 4", 1), "literal -Infinity"),
    "a nesting bomb of lists": (lambda: FIRST + b"[" * 100_000 + b"\n", "nested deeper than"),
    "a nesting bomb of tables": (lambda: FIRST + b'{"a":' * 100_000 + b"\n", "nested deeper than"),
    "a bomb of brackets": (lambda: FIRST + b"[]," * 300_000 + b"\n", "lists"),
    "a number of a million digits": (lambda: FIRST + b"9" * 1_000_000 + b"\n", "not strict JSON"),
    "a count beyond every float": (lambda: FIRST + ONE.replace(b"67108876", b"9" * 400), "64 bits"),
    "what is no UTF-8": (lambda: FIRST + b'"\xff"\n', "not strict JSON"),
    "UTF-16": (lambda: FIRST.decode().encode("utf-16"), "not strict JSON"),
    "too many readings": (
        lambda: FIRST + line(record("a.b", 1, readings={f"m{i}": make_runs.Reading("s") for i in range(501)})),
        "more than 500 readings",
    ),
    "a second header": (lambda: FIRST + FIRST, "second header"),
    "no header": (lambda: ONE, "begins with its header"),
    "a later schema": (lambda: FIRST.replace(b'"schema": 1', b'"schema": 2', 1), "schema 2"),
    "a line after the end": (lambda: FIRST + line(RunEnd(1.0, 0)) + ONE, "after the end"),
    "fewer records than the end counts": (lambda: FIRST + ONE + line(RunEnd(1.0, 2)), "counts 2 records"),
    "a run id that climbs": (lambda: line(header([], "../../etc/passwd")), "cannot name a file"),
    "a run id of capitals": (lambda: line(header([], "Run")), "cannot name a file"),
    "a run id that is hidden": (lambda: line(header([], ".run")), "cannot name a file"),
    "an endless run id": (lambda: line(header([], "a" * 129)), "cannot name a file"),
    "a machine id that climbs": (lambda: line(header([], machine={"id": "../x"})), "cannot name a file"),
    "a machine without id": (lambda: line(header([], machine={})), "cannot name a file"),
}


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_strangers_file_is_refused_by_file_and_line(content: Callable[[], bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content())
    started = time.monotonic()
    with pytest.raises(CannotDo, match=said) as refused:
        store.read_run(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 400
    assert time.monotonic() - started < 2


def test_a_line_of_a_hundred_megabytes_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as sink:
        sink.write(FIRST + b'"')
        sink.truncate(100 * 2**20)
        sink.seek(0, os.SEEK_END)
        sink.write(b'"\n')
    with pytest.raises(CannotDo, match="line 2: longer than"):
        store.read_run(path)


def test_strings_full_of_brackets_and_quotes_are_no_nesting(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    note = '[[[[{{{{"\\' * 100
    path.write_bytes(FIRST + line(record("softmax.naive", 128, note=note)))
    assert store.read_run(path).records[0].note == note


def test_a_string_that_never_ends_takes_no_time(tmp_path: Path) -> None:
    started = time.monotonic()
    assert reading._depth(b'"' + b'\\"' * 2_000_000) == 0
    assert reading._depth(b'"' + b"\\" * 2_000_001) == 0
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("limit", ["MAX_LINES", "MAX_ITEMS"])
def test_counts_are_limited(limit: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, limit, 3)
    with pytest.raises(CannotDo, match="more than 3"):
        store.read_run(results / MACHINE / f"{BEFORE}.jsonl")


def test_a_file_of_exactly_as_many_lines_as_allowed_is_read(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = results / MACHINE / f"{BEFORE}.jsonl"
    monkeypatch.setattr(reading, "MAX_LINES", path.read_bytes().count(b"\n"))
    assert store.read_run(path).finished


@pytest.mark.parametrize("schema", [1])
def test_every_earlier_schema_is_read(schema: int) -> None:
    run = store.read_run(DATA / f"schema{schema}.jsonl")
    assert (run.header.schema, run.finished, len(run.records)) == (schema, True, 9)
    assert run.records[0].readings["peak_forward"].values == (2_721_792,)


def test_a_pipe_or_a_folder_of_that_name_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(CannotDo, match=r"not a regular file"):
            store.read_run(tmp_path / name)
    with pytest.raises(CannotDo, match="No such file"):
        store.read_run(tmp_path / "c.jsonl")


@pytest.mark.parametrize(
    "text", ["..", ".a", "-a", "a/b", "a\\b", "a b", "A", "é", "", "a" * 129, "a\n", "a\0", None, 5]
)
def test_what_could_leave_its_folder_is_no_id(text: object) -> None:
    with pytest.raises(CannotDo, match="cannot name a file"):
        store.check_id(text, "the run")


def test_links_out_of_the_folder_are_neither_read_nor_written(
    results: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (results / "linked").symlink_to(outside)
    (results / MACHINE / "linked.jsonl").symlink_to(DATA / "schema1.jsonl")
    shutil.copy(DATA / "schema1.jsonl", outside / "secret.jsonl")
    assert set(store.run_ids(results)) == {BEFORE, AFTER}
    with pytest.raises(CannotDo, match="is a link"):
        store.Writer.create(results, header([], machine={"id": "linked"}))
    with pytest.raises(CannotDo, match="is a link"):
        store.Writer.resume(results / MACHINE / "linked.jsonl")
    (results / "baselines").symlink_to(outside)
    with pytest.raises(CannotDo, match="is a link"):
        store.set_baseline(results, store.read_run(store.find(results, BEFORE)))
    assert [path.name for path in outside.iterdir()] == ["secret.jsonl"]


# Names


def test_a_run_is_named_by_path_or_by_the_beginning_of_its_id(results: Path) -> None:
    path = results / MACHINE / f"{AFTER}.jsonl"
    assert store.find(results, str(path)) == path
    assert store.find(results, AFTER) == path
    assert store.find(results, "20260302") == path


def test_an_id_that_begins_another_is_still_found(results: Path) -> None:
    shutil.copy(results / MACHINE / f"{AFTER}.jsonl", results / MACHINE / f"{AFTER}x.jsonl")
    assert store.find(results, AFTER).stem == AFTER


def test_an_ambiguous_name_lists_what_it_could_be(results: Path) -> None:
    with pytest.raises(UserError, match=rf"2 runs begin with '2026': {BEFORE}, {AFTER}; write more"):
        store.find(results, "2026")


def test_an_unknown_name_is_told_what_is_near(results: Path) -> None:
    with pytest.raises(UserError, match=f"nearest: {AFTER}"):
        store.find(results, "bbbb2222")
    with pytest.raises(UserError, match=f"nearest: {AFTER}, {BEFORE}"):
        store.find(results, "20260303")
    with pytest.raises(UserError, match="nearest: latest"):
        store.find(results, "lastest")
    with pytest.raises(UserError, match="there is no run file"):
        store.find(results, "somewhere/else.jsonl")
    with pytest.raises(UserError, match="attnbench run --suite quick"):
        store.find(results / "empty", "x")


def test_the_latest_is_the_newest_by_time_not_by_name(results: Path) -> None:
    old = header([], "zzz", "1999-01-01T00:00:00Z")
    new = header([], "aaa", "2026-03-02T01:30:00-01:00")  # 02:30 UTC: half an hour after AFTER
    for head in (old, new):
        store.Writer.create(results, head).close()
    assert [store.find(results, name).stem for name in ("latest", "latest~0", "latest~1", "latest~3")] == [
        "aaa",
        "aaa",
        AFTER,
        "zzz",
    ]
    with pytest.raises(UserError, match=r"latest~4 is further back than the 4 stored runs; the oldest is latest~3"):
        store.find(results, "latest~4")


def test_a_run_killed_in_its_first_write_is_no_latest(results: Path) -> None:
    (results / MACHINE / "torn.jsonl").write_bytes(FIRST[:40])
    (results / MACHINE / "empty.jsonl").write_bytes(b"")
    assert store.find(results, "latest").stem == AFTER


def test_a_time_that_is_none_is_said_by_the_name_of_the_file(results: Path) -> None:
    store.Writer.create(results, header([], "odd", "yesterday")).close()
    with pytest.raises(CannotDo, match=r"odd\.jsonl: 'yesterday' is no time"):
        store.find(results, "latest")


def test_a_header_of_another_layout_is_dated_too(results: Path) -> None:
    (results / MACHINE / "other.jsonl").write_bytes(line(header([], "other", "2030-01-01T00:00:00")))
    assert store.find(results, "latest").stem == "other"


def test_ten_thousand_runs_are_no_matter(results: Path) -> None:
    folder = results / MACHINE
    body = (folder / f"{BEFORE}.jsonl").read_bytes().partition(b"\n")[0] + b"\n"
    for i in range(9_998):
        (folder / f"run-{i}.jsonl").write_bytes(
            body.replace(b"2026-03-01T02:00:00Z", f"2025-01-01T00:00:{i % 60:02}Z".encode())
        )
    started = time.monotonic()
    assert store.find(results, "latest").stem == AFTER
    assert store.find(results, "run-1234").stem == "run-1234"
    with pytest.raises(UserError):
        store.find(results, "rum-1234")
    assert time.monotonic() - started < 10  # about 1.5 s on two cores of a shared machine


def test_results_lie_where_the_option_says_else_the_variable_else_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNBENCH_RESULTS", raising=False)
    assert store.results_folder(None) == Path("results")
    monkeypatch.setenv("ATTNBENCH_RESULTS", "/elsewhere")
    assert store.results_folder(None) == Path("/elsewhere")
    assert store.results_folder("here") == Path("here")


# Baselines


def test_a_baseline_is_a_copy_and_outlives_its_run(results: Path) -> None:
    run = store.read_run(store.find(results, BEFORE))
    path = store.set_baseline(results, run)
    assert path == results / "baselines" / f"{MACHINE}.jsonl" == store.find(results, "baseline")
    run.path.unlink()
    assert store.baseline(results).records == run.records
    assert set(store.run_ids(results)) == {AFTER}
    store.set_baseline(results, store.read_run(store.find(results, AFTER)))
    assert store.baseline(results).header.run == AFTER
    assert [p.name for p in path.parent.iterdir()] == [f"{MACHINE}.jsonl"]


def test_a_missing_or_torn_baseline_cannot_be_held_against(results: Path) -> None:
    with pytest.raises(CannotDo, match=f"no baseline for {MACHINE}; make a run one with: attnbench baseline set"):
        store.find(results, "baseline")
    with pytest.raises(CannotDo, match="no baseline for agate-1"):
        store.baseline(results, "agate-1")
    path = store.set_baseline(results, store.read_run(store.find(results, BEFORE)))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CannotDo, match="is cut short"):
        store.baseline(results)


def test_an_unfinished_run_can_be_no_baseline(writer: store.Writer, tmp_path: Path) -> None:
    writer.append(GROUP)
    with pytest.raises(CannotDo, match="finish it with --resume"):
        store.set_baseline(tmp_path, writer.run())


def test_a_baseline_that_cannot_be_written_leaves_the_old_one(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_baseline(results, store.read_run(store.find(results, BEFORE)))

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CannotDo, match="No space left"):
        store.set_baseline(results, store.read_run(store.find(results, AFTER)))
    assert store.baseline(results).header.run == BEFORE
    assert len(list((results / "baselines").iterdir())) == 1


def test_the_stored_runs_are_what_their_script_writes() -> None:
    for name, lines in ((BEFORE, make_runs.before()), (AFTER, make_runs.after())):
        run = store.read_run(DATA / MACHINE / f"{name}.jsonl")
        assert [run.header, *run.records] == lines[:-1]
