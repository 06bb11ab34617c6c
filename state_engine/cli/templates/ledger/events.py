"""Made-up payments into and from five accounts."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

START = datetime(2026, 1, 5, 8)
ACCOUNTS = ["ada", "bob", "cem", "dan", "eva"]


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file, the same ones each time: number, account, cents (negative: a withdrawal) and time."""
    chance = random.Random(number)
    for place in range(50):
        at = START + timedelta(hours=number, minutes=place)
        yield {
            "id": 50 * number + place,
            "account": chance.choice(ACCOUNTS),
            "cents": chance.randrange(-8_000, 10_000),
            "at": f"{at.isoformat()}Z",
        }
