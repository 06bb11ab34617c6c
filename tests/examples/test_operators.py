"""Each example of an operator draws what its text says."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from examples import operators

PICTURES = {
    "sessions": """
ada [2───────────────]
eva   [1────────]
ada [4───────────────────────────────]
eva   [1────────]
""",
    "duplicates": """
rows     ████████████████████████████████████████████████████████████ 2200
payments █████████████████████████████████████████ 1500
""",
    "balances": """
food ████████████ 30
rent ████████████████████████████████████████████████████████████ 150
alert: food is at -50
""",
    "history": """
ada [Oslo───────────────────────────────────────────────────────]
eva           [Rome─────────────────────────────────────────────]
ada [Oslo───────────────[Bern────────────────────[Paris─────────]
eva           [Rome─────────────────────────────────────────────]
""",
    "card_features": """
05. 10:00 ██████████ 2000
14. 12:00 ████████ 1500
25. 20:00 █████ 900
25. 20:04 ████████ 1600
25. 20:07 ██████████████ 2700
25. 20:11 ████████████████████████████████████████████████████████████ 11700
suspicious: c1 at 20:11
""",
    "unpaid_orders": """
order 1 [paid─────]
order 2      [unpaid────────────────────────────────────────]
order 3                [paid─────]
""",
    "funnel": """
view ████████████████████████████████████████████████████████████ 4
cart ██████████████████████████████ 2
buy  ███████████████ 1
""",
    "silent_sensors": """
cellar          [silent──────────────────────]
roof                             [silent─────────────────]
""",
    "best_sellers": """
28. 22 h  1. tea  █████████████████████████████████ 5
28. 23 h  1. jam  ███████████████████████████████████████████████ 7
28. 23 h  2. rice ████████████████████ 3
28. 23 h  3. tea  █████████████ 2
29. 21 h  1. tea  ███████████████████████████ 4
29. 22 h  1. jam  ████████████████████████████████████████████████████████████ 9
27. 23:00 to 28. 23:00 ██████████████████ 5
28. 23:00 to 29. 22:00 ████████████████████████████████████████████████████████████ 17
29. 22:00 to 30. 22:00 ████████████████████████████████ 9
""",
    "prices_in_force": """
tea 05. 10:59 ██████████████████████████████████████ 50
tea 05. 11:00 ████████████████████████████████████████████████████████████ 80
jam 06. 08:00 ██████████████████████ 30
jam 06. 08:01  0
""",
}


@pytest.mark.parametrize("name", PICTURES)
def test_an_example_draws_its_result(name: str) -> None:
    assert import_module(f"examples.operators.{name}").main() == PICTURES[name].strip("\n").split("\n")


def test_all_examples_are_tried() -> None:
    files = {path.stem for path in Path(*operators.__path__).glob("[a-z]*.py")}
    assert files == {*PICTURES, "drawing"}
