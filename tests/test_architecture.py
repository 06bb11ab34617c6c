"""The description of the rooms is that of the code."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ENGINE = REPOSITORY / "state_engine"
TEXT = (REPOSITORY / "docs" / "architecture.md").read_text()

_spec = importlib.util.spec_from_file_location("rooms", REPOSITORY / "docs" / "rooms.py")
assert _spec is not None
assert _spec.loader is not None
rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def test_the_picture_is_drawn_from_the_imports_of_today() -> None:
    assert rooms.PICTURE.read_text() == rooms.drawn(), "run: python docs/rooms.py"


def test_every_room_says_what_it_is_for() -> None:
    packages = [f.parent for f in ENGINE.rglob("__init__.py") if f.parent != ENGINE]
    assert len(packages) > 20
    assert all(rooms.purpose(str(p.relative_to(ENGINE))) for p in packages)


def test_captions_of_the_picture_are_not_cut_off() -> None:
    assert [room for room in rooms.floors() if len(rooms.caption(room)) > 102] == []


def test_files_that_the_description_names_are_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", TEXT))
    assert len(named) > 30
    assert [
        name for name in named if not any((place / name).is_file() for place in (ENGINE, REPOSITORY))
    ] == []


def test_the_table_has_all_rooms_in_their_order() -> None:
    table = TEXT.partition("## The rooms")[2].partition("\n\n* ")[0]
    named = [
        room
        for cell in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
        for room in re.findall(r"`(\w+)/`", cell)
    ]
    assert named == rooms.floors()


def test_rooms_have_a_size_that_one_can_look_through() -> None:
    packages = [f.parent for f in ENGINE.rglob("__init__.py")]
    assert {p.name: n for p in packages if (n := len(list(p.glob("*.py")))) > 25} == {}


def test_one_place_touches_the_private_ways_into_java() -> None:
    private = {"_jvm", "_jsc", "_jdf", "_jconf", "_jsparkSession", "_gateway"}
    touched = {
        str(file.relative_to(ENGINE))
        for file in ENGINE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in private
    }
    assert touched == {"storage/java_gateway.py"}


def test_one_module_asks_which_kind_of_rows_it_has() -> None:
    kinds = {"DriverRows", "TaskRows", "SparkRows", "OwnRows"}
    asking = {
        str(file.relative_to(ENGINE))
        for file in ENGINE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        if kinds & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
    }
    assert asking == {"sources/rows.py"}


def _patched_constants(module: ast.Module) -> list[str]:
    """Constants of modules of the engine that a test sets, in the ways of pytest, of ``mock``, or by itself."""
    of_engine = {
        alias.asname or alias.name.rpartition(".")[2]
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        if f"{getattr(node, 'module', None) or alias.name}".startswith("state_engine")
    }
    patched = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _name_of(node.func) in ("setattr", "object", "patch"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            of = {n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)} if node.args else set()
            patched += [t for t in texts[:1] if t.startswith("state_engine.") or of & of_engine]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            patched += [
                t.attr
                for t in targets
                if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id in of_engine
            ]
    return [text for text in patched if re.fullmatch(r"_*[A-Z][A-Z0-9_]*", text.rpartition(".")[2])]


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_limits_are_arguments_and_no_test_patches_a_constant() -> None:
    tests = REPOSITORY / "tests"
    patched = {
        f"{file.relative_to(tests)}: {name}"
        for file in tests.rglob("*.py")
        for name in _patched_constants(ast.parse(file.read_text()))
    }
    assert patched == set()


def test_every_way_to_patch_a_constant_is_seen() -> None:
    imported = "from state_engine.spark import tasks\n"
    for way in (
        'patch.setattr(tasks, "LIMIT", 1)',
        'patch.setattr("state_engine.spark.tasks._LIMIT", 1)',
        'with mock.patch.object(tasks, "LIMIT", 1): pass',
        'with mock.patch("state_engine.spark.tasks.LIMIT", 1): pass',
        "tasks.LIMIT = 1",
    ):
        assert len(_patched_constants(ast.parse(imported + way))) == 1, way
    assert _patched_constants(ast.parse(imported + 'patch.setattr(tasks, "run", 1)')) == []


_STEPS = re.findall(
    r"^\| (?!step )([^|]+) \| (`[^|]+\.py` \(`[^|]+)\|$",
    TEXT.partition("## To follow an operation")[2].partition("\n## ")[0],
    re.MULTILINE,
)
"""What is done, and the files that are open then, each with what it is read for."""


def test_every_step_of_an_operation_is_followed_with_three_files() -> None:
    assert len(_STEPS) > 25
    for step, opened in _STEPS:
        files = re.findall(r"`([\w/]+\.py)` \(([^)]+)\)", opened)
        assert 2 <= len(files) <= 3, step
        imported: set[str] = set()
        for file, names in files:
            tree = ast.parse((ENGINE / file).read_text())
            absent = [
                name for name in re.findall(r"`([\w.]+)`", names) if not _defines(tree.body, name.split("."))
            ]
            assert not absent, f"{step}: {file} has no {absent}"
            for node in (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module):
                imported |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        modules = ["state_engine." + file.removesuffix(".py").replace("/", ".") for file, _ in files[1:]]
        unreached = [m for m in modules if m not in imported]
        assert not unreached, f"{step}: no file of the step leads to {unreached}"


_QUESTIONS = re.findall(
    r"^\| ([^|]+\?) \| ([^|]+) \| ([^|]+) \|$",
    TEXT.partition("## Ten questions")[2].partition("\n## ")[0],
    re.MULTILINE,
)


def test_ten_questions_are_answered_by_functions_that_exist() -> None:
    assert len(_QUESTIONS) == 10
    for question, *answers in _QUESTIONS:
        named = re.findall(r"`([\w/]+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)", " ".join(answers))
        assert named, question
        for file, names in named:
            body = ast.parse((ENGINE / file).read_text()).body
            assert [
                name for name in re.findall(r"`([\w.]+)`", names) if not _defines(body, name.split("."))
            ] == [], f"{question}: {file}"


def _defines(body: list[ast.stmt], name: list[str]) -> bool:
    """Whether a function or class is defined there, or a method of a class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    inside = next((node.body for node in body if isinstance(node, kinds) and node.name == name[0]), None)
    return inside is not None and (len(name) == 1 or _defines(inside, name[1:]))
