"""Lets another file of made-up events arrive in the inbox of the job.

python arrive.py        # one more file
python arrive.py 5      # five more
"""

import json
import sys
from pathlib import Path

from events import events

INBOX = Path(__file__).parent / "data" / "inbox"


def arrive(files: int = 1) -> list[Path]:
    """Write the next files; those that are there stay as they are."""
    INBOX.mkdir(parents=True, exist_ok=True)
    first = len(list(INBOX.glob("*.json")))
    written = [INBOX / f"{number:04}.json" for number in range(first, first + files)]
    for number, file in enumerate(written, start=first):
        draft = file.with_name(f".{file.name}")  # a source never reads names that begin with a dot
        draft.write_text("".join(json.dumps(event) + "\n" for event in events(number)))
        draft.rename(file)
    return written


def first_files() -> None:
    """Write three files where there are none, so that the job has something to read."""
    if not INBOX.exists():
        arrive(3)


if __name__ == "__main__":
    for path in arrive(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(f"{path.relative_to(Path(__file__).parent)} has arrived")
