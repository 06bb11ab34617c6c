"""``python -m benchmarks.all``: parts are kept and run again; the page says what is missed, and by how much."""

from __future__ import annotations

import doctest
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import figures as figures_module
from benchmarks.all import __main__ as command
from benchmarks.all import page, pictures, records, targets
from benchmarks.all.parts import PARTS
from benchmarks.all.records import Machine, Record
from benchmarks.all.targets import TARGETS, Target
from benchmarks.figures import Comparison, Fact, Figures, Spread, Timed
from benchmarks.large_state import keys_name, timers_name
from benchmarks.micro_batches import FIRST, LAST
from benchmarks.parts import catch_up, growth, rolling_features
from benchmarks.parts.windows import open_name

MACHINE = Machine(2, 23.5, "a processor", {"Spark": "4.2.0", "commit": "abc"})


def compared(**seconds: float) -> Comparison:
    """A series of one round each."""
    return Comparison("a title", [Timed(name, [value], 1_000_000) for name, value in seconds.items()])


def growing(few: int, many: int) -> Figures:
    """Figures of part G, such that every target is just met."""
    comparisons, facts = dict[str, Comparison](), dict[str, Fact]()
    for name in growth.OPERATORS:
        for events in (1_000, 100_000):
            seconds = {keys_name(few, events): 1.0, keys_name(many, events): 2.0}
            comparisons[f"{name}_{events}"] = compared(**seconds)
        compaction = Timed(growth.compaction_name(many), [100.0], many)
        comparisons[f"{name}_compaction"] = Comparison("compaction", [compaction], alike=False)
        facts |= {f"{name}_memory_{keys}": Fact("memory", 200, "MB") for keys in (few, many)}
    for program in growth.PROGRAMS:
        comparisons[program] = compared(**{growth.ONE: 1.7, growth.TWO: 1.0})
    return Figures(comparisons, facts)


def everything() -> dict[str, Figures]:
    """Figures of all parts, such that every target is just met."""
    many, few, warm = keys_name(10_000_000, 10_000), keys_name(100_000, 10_000), keys_name(1_000_000, 1_000)
    pending = {timers_name(n): s for n, s in ((10_000, 1.0), (1_000_000, 1.2), (10_000_000, 1.5))}
    return {
        "A": Figures({"full": compared(
            statelake=1, statelake_columns=0.8, transformWithState_rows=10, pyflink=100, flink_sql=0.7,
            flink_sql_rocksdb=1, polars=0.2,
        ), "small": compared(statelake=0.2)}),
        "B": Figures({"full": compared(statelake=2, transformWithState_rows=60)}),
        "C": Figures(
            {"full": compared(statelake=3, flink_sql_totals=6, flink_sql_files=8)},
            {"memory_first": Fact("first", 200, "MB"), "memory_last": Fact("last", 300, "MB")},
        ),
        "W": Figures({
            "hours": compared(statelake=1, statelake_per_element=20, spark=2, polars=0.3),
            "sessions": compared(statelake=1, statelake_per_element=20, spark=2),
            "open": compared(**{open_name(10_000): 1, open_name(1_000_000): 1.5}),
        }),
        "D": Figures({"sizes": compared(**{few: 1, many: 2}), "warm": compared(**{warm: 0.35})}),
        "T": Figures({"sizes": compared(**pending)}),
        "M": Figures(facts={"one": Fact("one", 80), "every": Fact("every", 8)}),
        "S": Figures({"wall": compared(statelake=6, transformWithState_rows=6)}),
        "U": Figures({"full": compared(**{catch_up.THIS: 10, catch_up.BASELINE: 20})}),
        "micro_batches": Figures(
            {"edges": compared(**{FIRST: 0.1, LAST: 0.12})},
            facts={"ratio": Fact("ratio", 1.2)},
            curves={"micro-batches": [100, 1000], "median s": [0.2, 0.3]},
        ),
        "F": Figures(
            {"spans": compared(**{rolling_features.HOUR: 1, rolling_features.MONTH: 2})},
            {"entries": Fact("entries", 100)},
        ),
        "G": growing(10_000_000, 100_000_000),
        "operations": Figures({"full": compared(compaction=1)}, {"rescale_bytes": Fact("rescale", 0, "bytes")}),
    }  # fmt: skip


def recorded(all_figures: dict[str, Figures], *, quick: bool = False, load: float = 0.1) -> dict[str, Record]:
    """As they are kept."""
    return {
        part: Record(part, quick, "2026-11-25 12:00", 90.0, load, 2.0, MACHINE, figures)
        for part, figures in all_figures.items()
    }


def targets_of(text: str) -> list[list[str]]:
    """Rows of the table of targets."""
    table = text.partition("| workload |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_a_part_waits_for_an_idle_machine_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, now_s = [3.0, 1.1, 0.9, 0.1], [0.0]
    monkeypatch.setattr(figures_module.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(figures_module.os, "getloadavg", lambda: (loads[0], 9.0, 9.0))
    monkeypatch.setattr(figures_module.time, "monotonic", lambda: now_s[0])

    def sleep(seconds: float) -> None:
        now_s[0] += seconds
        loads.pop(0)

    monkeypatch.setattr(figures_module.time, "sleep", sleep)
    figures_module.wait_until_idle()
    assert loads == [0.9, 0.1]
    loads[:] = [5.0] * 10
    figures_module.wait_until_idle(most_s=15)
    assert len(loads) == 7


@pytest.mark.parametrize(
    "module", [figures_module, targets, pictures], ids=lambda module: str(module.__name__)
)
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_all_targets_are_on_the_page_and_met() -> None:
    rows = targets_of(page.page(recorded(everything()), place="pictures"))
    assert [row[4] for row in rows] == ["reported" if t.sense == "reported" else "met" for t in TARGETS]
    assert [row[0] for row in rows] == [t.workload for t in TARGETS]
    assert {t.workload for t in TARGETS} == set(PARTS)


def test_a_target_that_is_missed_says_by_how_much_and_what_the_floor_is() -> None:
    all_figures = everything()
    all_figures["T"] = Figures({"sizes": compared(**{timers_name(10_000): 1, timers_name(1_000_000): 1.8})})
    text = page.page(recorded(all_figures), place="pictures")
    verdicts = {row[1]: row[2:] for row in targets_of(text) if row[0] == "T"}
    assert verdicts == {
        "1,000,000 pending timers ÷ 10,000": ["1.80 ×", "≤ 1.20 ×", "missed by 50 %"],
        "10,000,000 pending timers ÷ 10,000": ["", "≤ 1.50 ×", "not measured"],
    }
    (floor,) = re.findall(r"^\* T, 1,000,000 pending timers ÷ 10,000: (.*)$", text, re.MULTILINE)
    assert "decode the whole base" in floor


def test_every_target_that_can_be_missed_has_a_floor() -> None:
    limited = [t for t in TARGETS if t.sense != "reported" and t.limit]
    assert [t.what for t in limited if not t.floor] == []


@pytest.mark.parametrize(
    ("sense", "limit", "value", "verdict"),
    [
        ("≥", 10, 10, "met"),
        ("≥", 10, 7.5, "missed by 25 %"),
        ("≤", 4, 4.0, "met"),
        ("≤", 4, 6, "missed by 50 %"),
        ("≤", 0, 3, "missed by 3 bytes"),
        ("≤", 0, None, "not measured"),
        ("reported", 0, 3, "reported"),
    ],
)
def test_verdicts(sense: Any, limit: float, value: float | None, verdict: str) -> None:
    assert Target("A", "", lambda figures: None, sense, limit, "bytes").verdict(value) == verdict


def test_tables_show_medians_spread_rates_and_ratios() -> None:
    series = [Timed("ours", [0.5, 0.7, 0.6], 60), Timed("peer", [3.0], 0, "extrapolated")]
    assert list(page.table(Comparison("both", series))) == [
        "| both | rounds | min s | median s | max s | per second | ÷ first |",
        "|---|---|---|---|---|---|---|",
        "| `ours` | 3 | 0.500 | 0.600 | 0.700 | 100 | 1.00 |",
        "| `peer` | 1 | 3.00 | 3.00 | 3.00 |  | 5.00 |",
        "",
        "* `peer`: extrapolated",
    ]
    unlike = list(page.table(Comparison("steps", series, alike=False)))
    assert [line.split("|")[-2].strip() for line in unlike[2:4]] == ["", ""]
    assert str(Spread.of([0.5, 0.7, 0.6])) == "median 0.600 s, from 0.500 to 0.700 s"


def test_a_page_has_its_machine_its_load_and_pictures_that_are_there(tmp_path: Path) -> None:
    all_figures = everything()
    all_figures["C"].missing.append("Flink")
    shown = page.write(tmp_path, recorded(all_figures, load=1.5))
    text = shown.read_text()
    assert "2026-11-25: 2 cores (a processor), 24 GB; Spark 4.2.0, commit abc." in text
    assert text.count("1.5 minutes; load 1.5 before, 2.0 after: **the machine was busy**.") == len(PARTS)
    assert "Not measured: Flink." in text
    linked = re.findall(r"\]\((pictures/.*?)\)", text)
    assert sorted(linked) == sorted(f"pictures/{file.name}" for file in (tmp_path / "pictures").iterdir())
    for picture in linked:
        ElementTree.parse(tmp_path / picture)
    section = (tmp_path / "last-figures.md").read_text()
    assert section == text.replace("(pictures/", "(../pictures/")
    assert "busy" not in page.page(recorded(all_figures), place="pictures")


def test_a_bar_is_as_long_as_its_median() -> None:
    def widths(*seconds: float) -> list[float]:
        svg = pictures.bars(Comparison("", [Timed(f"{s}", [s]) for s in seconds]))
        return [float(w) for w in re.findall(r'width="([\d.]+)" height="18"', svg)]

    one, two = widths(1, 2)
    assert two == pytest.approx(2 * one, rel=0.01)
    first, second, third = widths(1, 10, 100)
    assert third - second == pytest.approx(second - first, rel=0.01)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = recorded(everything())
    for record in kept.values():
        records.write(tmp_path, record)
    assert records.read(tmp_path, quick=False) == kept
    assert list(records.read(tmp_path, quick=False)) == list(PARTS)
    assert records.read(tmp_path, quick=True) == {}


def app() -> Typer:
    one = Typer()
    one.command()(command.run)
    return one


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Commands of the processes that are started; each leaves figures, but those of part T fail."""
    commands: list[list[str]] = []

    def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if arguments[0] == "git":
            return subprocess.CompletedProcess(arguments, 0, "abc", "")
        commands.append(arguments[3:])
        part, directory = arguments[3], Path(arguments[4])
        if part != "T":
            kept = recorded({part: everything()[part]}, quick="--quick" in arguments)
            records.write(directory, kept[part])
        return subprocess.CompletedProcess(arguments, int(part == "T"), "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture
def invoke(tmp_path: Path, processes: list[list[str]]) -> Callable[..., Any]:
    """Runs the command with its output in the test's directory."""
    return lambda *arguments: CliRunner().invoke(app(), [*arguments, "--output", str(tmp_path)])


def test_every_part_has_a_process_and_one_that_fails_is_named(
    invoke: Callable[..., Any], processes: list[list[str]], tmp_path: Path
) -> None:
    done = invoke("--baseline", str(tmp_path))
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "failed: T; go on with --resume"
    assert processes == [[part, str(tmp_path), "--baseline", str(tmp_path)] for part in PARTS]
    assert "10,000 |  | ≤ 1.20 × | not measured |" in (tmp_path / "benchmarks.md").read_text()


def test_a_run_goes_on_with_what_is_missing(
    invoke: Callable[..., Any], processes: list[list[str]], tmp_path: Path
) -> None:
    assert invoke("--only", "M,A").exit_code == 0
    assert [arguments[0] for arguments in processes] == ["A", "M"]
    invoke("--resume", "--only", "A,B")
    assert [arguments[0] for arguments in processes[2:]] == ["B"]
    invoke("--only", "A")
    assert [arguments[0] for arguments in processes[3:]] == ["A"]
    text = (tmp_path / "benchmarks.md").read_text()
    assert re.findall(r"^### (\w+):", text, re.MULTILINE) == ["A", "B", "M"]


def test_small_sizes_are_no_figures(
    invoke: Callable[..., Any], processes: list[list[str]], tmp_path: Path
) -> None:
    invoke("--only", "A")
    invoke("--only", "A,M", "--quick", "--resume")
    assert [arguments[0] for arguments in processes] == ["A", "A", "M"]
    assert "mean nothing" in (tmp_path / "benchmarks.md").read_text()


def test_what_failed_leaves_no_former_figures(invoke: Callable[..., Any], tmp_path: Path) -> None:
    records.write(tmp_path, recorded(everything())["T"])
    assert invoke("--only", "T").exit_code == 1
    assert not records.file_of(tmp_path, "T").exists()


def test_an_unknown_part_is_refused(invoke: Callable[..., Any], processes: list[list[str]]) -> None:
    done = invoke("--only", "A,Z")
    assert done.exit_code == 2
    assert "there is no part" in done.output
    assert processes == []
