"""The catalogue: a file is an entrant, a file without its noun is an error, a misspelt name gets the nearest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import attention_impls.layers
import attention_impls.transforms
import attention_impls.variants.scores
from attention_impls import catalogue
from attention_impls.catalogue import MissingNounError, UnknownNameError, find, load_plugin
from attention_impls.contract import Workload
from attention_impls.inputs import draw
from attention_impls.names import BadNameError

Drop = Callable[[object, str, str], Path]

VARIANT = """
from attention_impls.makers import of, softmax_of

def implementations(size: int = 4, rate: float = 0.5):
    if size < 1:
        raise ValueError("size must be at least 1")
    planted = softmax_of("planted", lambda call, rows: call.q[:, :, rows] @ call.k.mT * rate)

    def naive(q, k, v, *, mask, scale):
        return v

    def blocked(block: int = 32):
        return of(planted, naive, name="blocked", configure=blocked)

    return [of(planted, naive), blocked()]
"""


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """Drops a file into a folder of the catalogue, for one test."""
    before = set(sys.modules)

    def one(package: object, name: str, text: str) -> Path:
        folder = tmp_path / str(package.__name__)
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text, "utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        _forget()
        return path

    yield one
    monkeypatch.undo()
    for name in set(sys.modules) - before:
        if name.rpartition(".")[2] in ("planted", "nounless", "attnbench_plugin_mine"):
            del sys.modules[name]
    _forget()


def _forget() -> None:
    for found in (catalogue.entries, catalogue.transforms, catalogue.layers):
        found.cache_clear()


def test_a_file_dropped_into_a_folder_is_found_with_its_family(drop: Drop) -> None:
    drop(attention_impls.variants.scores, "planted.py", VARIANT)
    assert {"planted.naive", "planted.blocked"} == set(catalogue.implementations("planted"))
    assert find("planted.naive").family == "scores"


def test_options_reach_the_variant_and_the_implementation(drop: Drop) -> None:
    drop(attention_impls.variants.scores, "planted.py", VARIANT)
    subject = find("planted:size-7:rate-0.25.blocked:block-8")
    assert dict(subject.name.variant_options) == {"size": "7", "rate": "0.25"}
    assert dict(subject.name.implementation_options) == {"block": "8"}


@pytest.mark.parametrize(
    ("asked", "printed"),
    [
        ("planted:size-4.naive", "planted.naive"),
        ("planted:rate-0.50.naive", "planted.naive"),
        ("planted:rate-0.250:size-5.naive", "planted:size-5:rate-0.25.naive"),
        ("planted.blocked:block-32", "planted.blocked"),
    ],
)
def test_one_thing_has_one_name_defaults_left_out(drop: Drop, asked: str, printed: str) -> None:
    drop(attention_impls.variants.scores, "planted.py", VARIANT)
    assert str(find(asked).name) == printed


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("planted:size-x.naive", "option size of planted must be a int; got 'x'"),
        ("planted:size-0.naive", "size must be at least 1"),
        ("planted.naive:block-3", "planted.naive takes no options"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_sentence(drop: Drop, asked: str, says: str) -> None:
    drop(attention_impls.variants.scores, "planted.py", VARIANT)
    with pytest.raises(ValueError, match=says):
        find(asked)


@pytest.mark.parametrize(
    ("package", "find_all", "noun"),
    [
        (attention_impls.variants.scores, catalogue.entries, "IMPLEMENTATIONS"),
        (attention_impls.transforms, catalogue.transforms, "TRANSFORM"),
        (attention_impls.layers, catalogue.layers, "LAYER"),
    ],
)
@pytest.mark.parametrize("text", ["", "IMPLEMENTATIONS = []\nTRANSFORM = LAYER = 3\n"])
def test_a_file_without_its_noun_is_an_error_naming_both(
    drop: Drop, package: object, find_all: Callable[[], object], noun: str, text: str
) -> None:
    drop(package, "nounless.py", text)
    with pytest.raises(MissingNounError, match=rf"nounless\.py: expected {noun}"):
        find_all()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("sofmax.naive", "no variant called 'sofmax'; did you mean 'softmax'?"),
        ("softmax.naiv", "no implementation of softmax called 'naiv'; did you mean 'naive'?"),
        ("softmax.naive+query_chunk:8", "no transform called 'query_chunk'; did you mean 'query_chunks'?"),
        ("softmax.naive+in:multihead", "no layer called 'multihead'; did you mean 'multi_head'?"),
        ("softmax:window-3.naive", "no option of softmax called 'window'"),
        ("zzz.naive", "no variant called 'zzz'; known: "),
    ],
)
def test_a_misspelt_name_gets_the_nearest_or_the_known(asked: str, says: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find(asked)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("softmax.naive+int8_dynamic", r"int8_dynamic acts on a layer: it belongs after \+in:layer"),
        ("softmax.naive+in:multi_head+recompute", r"recompute acts on a kernel: it belongs before \+in:layer"),
        ("softmax.naive+query_chunks", "query_chunks needs a whole number"),
        ("softmax.naive+query_chunks:0", "query_chunks needs a whole number"),
    ],
)
def test_a_transform_in_the_wrong_place_or_without_sense_is_a_sentence(asked: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        find(asked)


def test_bad_grammar_is_told_apart_from_an_unknown_name() -> None:
    with pytest.raises(BadNameError):
        find("softmax")


def test_a_subject_keeps_what_it_is_made_of_inside_to_outside() -> None:
    subject = find("softmax.naive+recompute+query_chunks:8+in:multi_head+int8_dynamic")
    assert [(t.label, a) for t, a in subject.transforms] == [("recompute", None), ("query_chunks", "8")]
    assert [t.label for t, _ in subject.layer_transforms] == ["int8_dynamic"]
    assert subject.bare.name == "naive"
    assert subject.inner.name == "naive+recompute+query_chunks:8"
    assert subject.layer is not None


def test_only_transforms_that_round_on_purpose_change_the_definition() -> None:
    assert find("softmax.naive+recompute+query_chunks:8").definition is find("softmax.naive").variant
    assert find("softmax.naive+cast:bf16").definition is not find("softmax.naive").variant


def test_every_name_that_the_catalogue_lists_is_found_under_that_name() -> None:
    for name in catalogue.implementations():
        assert str(find(name).name) == name


def test_every_entrant_says_what_it_is_and_what_it_costs() -> None:
    for name in catalogue.implementations():
        variant = find(name).variant
        assert variant.formula and variant.cost and variant.paper, f"{variant.name} lacks formula, cost or paper"
        assert variant.masks >= {"full"} or variant.masks >= {"causal"}
        assert not variant.approximates or variant.approximates in catalogue.entries()


PLUGIN = """
from attention_impls.makers import plain

def mine(q, k, v, scale):
    return (q @ k.mT * scale).softmax(-1) @ v

IMPLEMENTATIONS = [plain(mine, "mine")]
"""


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch, drop: Drop) -> None:
    monkeypatch.setattr(catalogue, "_loaded", {})


def test_a_users_file_joins_the_variant_it_implements(tmp_path: Path, plugins: None) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN, "utf-8")
    load_plugin(path)
    assert "softmax.mine" in catalogue.implementations("softmax")
    call = draw(find("softmax.mine").variant, Workload(batch=1, heads=2, kv_heads=2, q_len=3, kv_len=3))
    assert find("softmax.mine").inner.prepare(call, False)(call).out.shape == call.q.shape


def test_a_users_file_that_is_not_there_or_offers_nothing_is_an_error(tmp_path: Path, plugins: None) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.py"):
        load_plugin(tmp_path / "absent.py")
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n", "utf-8")
    with pytest.raises(MissingNounError, match=r"mine\.py: expected IMPLEMENTATIONS"):
        load_plugin(path)


def test_another_files_implementation_never_stands_under_options_it_does_not_know(
    tmp_path: Path, plugins: None
) -> None:
    path = tmp_path / "more.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from attention_impls.catalogue import find\n"
        "IMPLEMENTATIONS = [replace(find('sliding_window.naive').bare, name='mine')]\n",
        encoding="utf-8",
    )
    load_plugin(path)
    assert str(find("sliding_window.mine").name) == "sliding_window.mine"
    with pytest.raises(UnknownNameError, match="mine"):
        find("sliding_window:window-8.mine")


def test_two_implementations_of_one_name_are_an_error(tmp_path: Path, plugins: None) -> None:
    path = tmp_path / "again.py"
    path.write_text(
        "from attention_impls.catalogue import find\nIMPLEMENTATIONS = [find('softmax.naive').bare]\n", encoding="utf-8"
    )
    load_plugin(path)
    with pytest.raises(ValueError, match=r"two implementations are called softmax\.naive"):
        find("softmax.naive")
