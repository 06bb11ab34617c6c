"""Made-up clicks of ten users: an hour in each file, some of them late."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

START = datetime(2026, 1, 5, 8)
USERS = [f"user{number}" for number in range(10)]


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file, the same ones each time: user, time and page."""
    chance = random.Random(number)
    for _ in range(60):
        at = START + timedelta(hours=number, seconds=chance.randrange(3600))
        page = f"/{chance.choice(['', 'cart', 'search', 'help'])}"
        yield {"user": chance.choice(USERS), "at": f"{at.isoformat()}Z", "page": page}
