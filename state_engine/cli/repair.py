"""What ``statelake doctor --repair`` prints; what it repairs is listed in ``monitoring.repairs``.

Exit codes: 0 nothing is damaged, or all of it was repaired; 1 something is left, or a dry run shows something.
"""

from __future__ import annotations

import typer
from rich.markup import escape

from state_engine.cli.session import console
from state_engine.monitoring.repairs import damages, repair
from state_engine.operations.damage import Damage
from state_engine.storage.files import normal_uri


def repair_root(root: str, *, dry_run: bool) -> None:
    """Show what is damaged in a root, and repair it unless only asked to show."""
    uri = normal_uri(root)
    if dry_run:
        shown = left = damages(uri)
        for damage in shown:
            _show(damage, "would do" if damage.apply else "to do")
    else:
        shown = []

        def show(damage: Damage) -> None:
            shown.append(damage)
            _show(damage, "does" if damage.apply else "to do")

        left = repair(uri, on_damage=show, on_done=lambda done: _print(f"[green]done[/]: {escape(done)}"))
    if not shown:
        _print(f"{escape(uri)}: nothing is damaged")
    elif dry_run:
        _print("Nothing was done.")
    if left:
        raise typer.Exit(code=1)


def _show(damage: Damage, label: str) -> None:
    _print(f"[red]{escape(damage.name)}[/]: {escape(damage.problem)}")
    _print(f"{label}: {escape(damage.repair)}")


def _print(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)
