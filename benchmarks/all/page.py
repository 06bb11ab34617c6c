"""The page: targets, tables and pictures, made of the records of all parts, as a section that a guide can take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.all.parts import PARTS
from benchmarks.all.pictures import bars
from benchmarks.all.records import Machine, Record
from benchmarks.all.targets import TARGETS, Target
from benchmarks.figures import Comparison, is_busy
from benchmarks.micro_batches import drawn


def pictures(records: Mapping[str, Record]) -> dict[str, str]:
    """SVGs by name of the file."""
    drawings = {
        _picture(part, name): bars(comparison)
        for part, record in records.items()
        for name, comparison in record.figures.comparisons.items()
    }
    curves = {p: drawn(r.figures.curves) for p, r in records.items() if r.figures.curves}
    return drawings | {_picture(part, "curves"): drawing for part, drawing in curves.items()}


def page(records: Mapping[str, Record], *, place: str) -> str:
    """The section in Markdown.

    Args:
        records: by part, in the order of the page.
        place: directory of the pictures, seen from the page.
    """
    lines = ["## Last figures", ""]
    if any(record.quick for record in records.values()):
        lines += ["**The sizes are those of tests: these figures mean nothing.**", ""]
    lines += [*_machines(records), "", *_targets(records)]
    for part, record in records.items():
        lines += ["", *_part(part, record, place)]
    return "\n".join(lines) + "\n"


def _picture(part: str, name: str) -> str:
    return f"benchmarks-{part}-{name}.svg".replace("_", "-").lower()


def _machines(records: Mapping[str, Record]) -> Iterator[str]:
    """One paragraph for each machine and version that parts were measured on; usually one."""
    of: dict[str, list[Record]] = {}
    for record in records.values():
        of.setdefault(_machine(record.machine), []).append(record)
    for machine, measured in of.items():
        parts = "" if len(of) == 1 else f" ({', '.join(record.part for record in measured)})"
        dates = sorted({record.date.split(" ")[0] for record in measured})
        yield f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}{parts}: {machine}."


def _machine(machine: Machine) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{machine.cores} cores ({machine.processor}), {machine.memory_gb:.0f} GB; {versions}"


def _targets(records: Mapping[str, Record]) -> Iterator[str]:
    figures = {part: record.figures for part, record in records.items()}
    values = [(target, target.figure(figures)) for target in TARGETS]
    yield "| workload | measured | figure | target | |"
    yield "|---|---|---|---|---|"
    for target, value in values:
        limit = "" if target.sense == "reported" else f"{target.sense} {_number(target.limit, target.unit)}"
        figure = "" if value is None else _number(value, target.unit)
        yield f"| {target.workload} | {target.what} | {figure} | {limit} | {target.verdict(value)} |"
    missed = [target for target, value in values if target.verdict(value).startswith("missed")]
    if missed:
        yield ""
        yield "What takes the time where a target is missed:"
        yield ""
        yield from _floors(missed)


def _floors(missed: list[Target]) -> Iterator[str]:
    for floor in dict.fromkeys(target.floor for target in missed if target.floor):
        of = dict.fromkeys(f"{t.workload}, {t.what}" for t in missed if t.floor == floor)
        yield f"* {'; '.join(of)}: {floor}"


def _number(value: float, unit: str) -> str:
    return f"{value:,.2f} {unit}" if abs(value) < 1000 and value != int(value) else f"{value:,.0f} {unit}"


def _part(part: str, record: Record, place: str) -> Iterator[str]:
    yield f"### {part}: {PARTS[part].title}"
    yield ""
    busy = is_busy(record.load_before, record.machine.cores)
    yield (
        f"{record.date}, {record.took_s / 60:.1f} minutes; load {record.load_before:.1f} before, "
        f"{record.load_after:.1f} after{': **the machine was busy**' if busy else ''}."
    )
    for name, comparison in record.figures.comparisons.items():
        yield ""
        yield from table(comparison)
        yield ""
        yield f"![{comparison.title}]({place}/{_picture(part, name)})"
    if record.figures.facts:
        yield ""
        for fact in record.figures.facts.values():
            yield f"* {fact.name}: {_number(fact.value, fact.unit).rstrip()}"
    if record.figures.curves:
        yield ""
        yield f"![{PARTS[part].title}]({place}/{_picture(part, 'curves')})"
    for missing in record.figures.missing:
        yield ""
        yield f"Not measured: {missing}."


def table(comparison: Comparison) -> Iterator[str]:
    """Medians and spread of all series, and each median divided by the first one."""
    first = comparison.series[0].spread.median
    yield f"| {comparison.title} | rounds | min s | median s | max s | per second | ÷ first |"
    yield "|---|---|---|---|---|---|---|"
    for one in comparison.series:
        spread, digits = one.spread, 2 if one.spread.median >= 1 else 3
        rate = f"{one.events / spread.median:,.0f}" if one.events else ""
        divided = f"{spread.median / first:.2f}" if comparison.alike else ""
        cells = [f"`{one.name}`", str(len(one.seconds)), *spread.cells(digits), rate, divided]
        yield f"| {' | '.join(cells)} |"
    notes = [one for one in comparison.series if one.note]
    if notes:
        yield ""
        yield from (f"* `{one.name}`: {one.note}" for one in notes)


def write(directory: Path, records: Mapping[str, Record]) -> Path:
    """Write the page with its pictures, and the same section for ``docs/guides``; the page's path."""
    (directory / "pictures").mkdir(exist_ok=True)
    for name, svg in pictures(records).items():
        (directory / "pictures" / name).write_text(svg)
    (directory / "last-figures.md").write_text(page(records, place="../pictures"))
    shown = directory / "benchmarks.md"
    shown.write_text(page(records, place="pictures"))
    return shown
