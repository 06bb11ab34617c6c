"""Made-up clicks of ten users: an hour in each file, the first three of the hours before now, some clicks late."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

USERS = [f"user{number}" for number in range(10)]


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file: user, time and page. The clicks of a minute come in any order."""
    chance = random.Random(number)
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=number - 4)
    for minute in range(60):
        at = start + timedelta(minutes=minute, seconds=chance.randrange(60))
        if number and minute % 30 == 29:
            at -= timedelta(hours=1 if minute == 29 else 3)  # late, and too late
        page = f"/{chance.choice(['', 'cart', 'search', 'help'])}"
        yield {"user": chance.choice(USERS), "at": at.isoformat(), "page": page}
