"""Every block of code on a page is run, or else checked here as far as it can be; the rest stands in one table.

What is run: Python and commands on pages that a `Reader` reads, and Python of guides, by the tests that
``test_guides.py`` names.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml
from click import Context, Group
from jinja2 import Environment
from pyspark.sql import SparkSession

from state_engine.cli.main import app
from state_engine.dagster.component import JobComponent
from state_engine.machine.settings import load
from tests.support.guides import DOCS, Block, blocks_of

REPOSITORY = DOCS.parent
GENERATED = ("api.md", "commands.md")
"""Written from the code, and compared with it."""
PAGES = [
    *(p for p in sorted(DOCS.rglob("*.md")) if p.parent.name != "decisions" and p.name not in GENERATED),
    REPOSITORY / "README.md",
]
READ = {"tutorial", "writing", "concepts", "questions", "from", "reference"}
"""Folders of pages that a `Reader` reads."""
SHELL = {"", "sh", "bash", "console"}
NOT_RUN = {
    ("docs/guides/clusters.md", "text"): "the error of a worker without pyarrow; tests/spark has it",
    ("docs/guides/clusters.md", "dockerfile"): "builds an image, which needs a network and a registry",
    ("docs/guides/debugging.md", "text"): "what the command prints; tests/replay/test_key_debug.py has it",
    ("docs/guides/flights.md", "text"): "a drawing",
    ("docs/guides/object_stores.md", "text"): "an error; tests/stores/test_store_checks.py has it",
    ("docs/guides/operations.md", "text"): "an error; tests/storage/test_parquet_files.py has it",
    ("docs/guides/planning.md", "text"): "what the command prints; tests/code_changes/test_sample.py has it",
    ("docs/guides/testing.md", "python no-run"): "needs the reader's own job and a fixture of pytest",
    (
        "docs/porting.md",
        "text",
    ): "imports of PyFlink, which is not installed; tests/porting has whole programs",
    (
        "docs/porting.md",
        "python",
    ): "imports alone, which test_the_imports_of_a_ported_function_are_there runs",
    (
        "docs/get-started.md",
        "python no-run",
    ): "parts of a template, which tests/cli and test_first_page.py run",
    ("README.md", "python"): "tests/test_first_page.py runs it",
}
"""Why a block is not run, by page and kind."""
OTHERS = {
    "dg": "tests/dagster makes the same runs in its own process",
    "dagster": "make test-ui starts it",
    "cd": "",
    "mv": "",
    "opentelemetry-instrument": "comes with the SDK; tests/telemetry/test_open_telemetry.py sets the SDK up itself",
    "mkdir": "",
}
"""Programs of others, and what tries the line."""


def kind_of(block: Block) -> str:
    return f"{block.language} {block.options}".strip() if block.options == "no-run" else block.language


def is_run(page: Path, block: Block) -> bool:
    if block.options == "no-run":
        return False
    if page.parent.name in READ:
        return bool(block.title) or block.language in ("python", "sh", "text")
    return page.parent.name == "guides" and block.language == "python"


LEFT = [(page, block) for page in PAGES for block in blocks_of(page) if not is_run(page, block)]
"""What no other test runs."""


def left(*languages: str) -> list[Block]:
    return [block for _, block in LEFT if block.language in languages and block.options != "no-run"]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, without prompts, remarks, and what follows a pipe or a redirection."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        for part in line.removeprefix("$ ").split("&&"):
            words = shlex.split(part, comments=True)
            ends = [n for n, word in enumerate(words) if word in ("|", ">")]
            if words := words[: min(ends, default=len(words))]:
                yield [Path(words[0]).name, *words[1:]]


def parse(arguments: list[str]) -> None:
    """Take arguments of ``statelake`` as the command does, without running it; raises ``click.UsageError``."""
    context = Context(typer.main.get_command(app), info_name="statelake")
    while isinstance(context.command, Group):
        name, command, arguments = context.command.resolve_command(context, arguments)
        assert command is not None
        context = command.make_context(name, list(arguments), parent=context)
        # Click keeps the name of the next command apart until version 9
        arguments = [*context._protected_args, *context.args] if isinstance(command, Group) else []


def parse_of_module(module: str, arguments: list[str]) -> None:
    """Take the arguments of a benchmark as its ``run`` does, without running it; raises ``click.UsageError``."""
    program = typer.Typer()
    program.command()(import_module(f"{module}.__main__").run)
    typer.main.get_command(program).make_context(module, list(arguments))


def test_every_block_is_run_or_checked_or_stands_in_the_table() -> None:
    checked = {*SHELL, "toml", "yaml", "sql"}
    rest = {(str(page.relative_to(REPOSITORY)), kind_of(block)) for page, block in LEFT}
    assert {(page, kind) for page, kind in rest if kind not in checked} == {*NOT_RUN}


def test_every_command_exists_and_takes_its_arguments() -> None:
    lines = [line for block in left(*SHELL) for line in commands(block)]
    assert len(lines) > 40
    makefile = (REPOSITORY / "Makefile").read_text()
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for program, *arguments in lines:
        if program == "statelake":
            parse(arguments)
        elif program == "make":
            assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), arguments
        elif program == "pip":
            [extra] = re.findall(r"^statelake\[(\w+)\]$", arguments[-1])
            assert extra in extras
        elif (program, arguments[0]) == ("python", "-m"):
            parse_of_module(arguments[1], arguments[2:])
        else:
            assert program in OTHERS, program


def test_a_command_that_is_written_wrongly_is_noticed() -> None:
    parse(["restore", "plane_delays", "41", "--dry-run"])
    for wrong in (["restor", "plane_delays"], ["restore", "plane_delays", "41", "--try"], ["restore"]):
        with pytest.raises(typer.main.click.UsageError):
            parse(wrong)
    with pytest.raises(typer.main.click.UsageError):
        parse_of_module("benchmarks.nexmark", ["--event", "10"])


def test_every_settings_file_is_one(tmp_path: Path) -> None:
    blocks = left("toml")
    assert len(blocks) >= 8
    for block in blocks:
        (tmp_path / "statelake.toml").write_text(block.text)
        load(environ={}, directory=tmp_path)


def test_the_component_has_the_attributes_that_are_shown() -> None:
    components = [text for block in left("yaml") if "attributes" in (text := yaml.safe_load(block.text))]
    assert components
    for shown in components:
        assert shown["type"].rpartition(".")[2] == JobComponent.__name__
        assert set(shown["attributes"]) <= set(JobComponent.model_fields)


def test_python_that_is_not_run_is_python() -> None:
    for page, block in LEFT:
        if block.language == "python":
            compile(block.text, str(page), "exec")


def test_the_imports_of_a_ported_function_are_there() -> None:
    [block] = [b for b in blocks_of(DOCS / "porting.md") if b.language == "python"]
    exec(block.text, {})


def test_every_query_is_one_that_spark_parses(spark: SparkSession) -> None:
    jvm_session = spark._jsparkSession
    blocks = left("sql")
    assert len(blocks) >= 5
    for block in blocks:
        for query in filter(str.strip, rendered(block.text, "sales", "totals", incremental=True).split(";")):
            jvm_session.sessionState().sqlParser().parsePlan(query)


def rendered(text: str, source: str, this: str, *, incremental: bool) -> str:
    """A model as dbt makes SQL of it."""
    names = {
        "config": lambda **_: "",
        "source": lambda *_: source,
        "this": this,
        "is_incremental": lambda: incremental,
    }
    return Environment(autoescape=False).from_string(text).render(names)


def test_the_model_of_dbt_gives_the_wrong_totals_that_the_page_says(spark: SparkSession) -> None:
    [model] = [b.text for b in blocks_of(DOCS / "from" / "spark.md") if b.language == "sql"]
    sales = [("north", 300, 1), ("south", 200, 2)]

    def run(*, incremental: bool) -> dict[str, int]:
        """What dbt puts into the table, by its unique key."""
        spark.createDataFrame(sales, "shop string, cents bigint, loaded_at int").createOrReplaceTempView(
            "sales"
        )
        rows = spark.sql(rendered(model, "sales", "totals", incremental=incremental)).collect()
        kept.update({row["shop"]: (row["total"], row["loaded_at"]) for row in rows})
        table = [(shop, *values) for shop, values in kept.items()]
        spark.createDataFrame(table, "shop string, total bigint, loaded_at int").createOrReplaceTempView(
            "totals"
        )
        return {row["shop"]: row["total"] for row in rows}

    kept: dict[str, tuple[int, int]] = {}
    assert run(incremental=False) == {"north": 300, "south": 200}
    sales += [("south", 5, 2), ("north", 50, 3), ("west", 9, 1)]  # at the same time, new, and late
    assert run(incremental=True) == {"north": 50}, "lost, the total of new rows only, never read"
    assert run(incremental=False) == {"north": 350, "south": 205, "west": 9}
    assert [spark.catalog.dropTempView(view) for view in ("sales", "totals")] == [True, True]
