"""Object stores in tests: how a process is brought to reach one, and how readers do that are not the engine's."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from functools import partial
from urllib.parse import urlsplit

import pyarrow.fs as pafs
import pytest

from state_engine.engine import context
from state_engine.storage.delta.store_checks import StoreChecks
from state_engine.storage.stores.files import open_location
from state_engine.storage.stores.object_stores import PROCESS_STORES, StoreAccess

KEY, SECRET = "STORE_KEY", "STORE_SECRET"
"""Environment variables that hold the keys."""
QUICK_RACE = 5
"""Names to race for where a test is about something else."""


def quick_race(patch: pytest.MonkeyPatch) -> None:
    """Engines have writers race for a few names only."""
    patch.setattr(context, "StoreChecks", partial(StoreChecks, names=QUICK_RACE))


def access_to(endpoint: str) -> StoreAccess:
    """The description of a store at an address of this machine."""
    return StoreAccess(endpoint=endpoint, access_key_variable=KEY, secret_key_variable=SECRET)


def delta_rs_options(table: str) -> dict[str, str] | None:
    """How delta-rs reaches the store of a table, as this process does; None on a disk."""
    if not table.startswith("s3a:"):
        return None
    access = PROCESS_STORES.access(urlsplit(table).netloc)
    return {
        "AWS_ENDPOINT_URL": access.endpoint,
        "AWS_REGION": access.region,
        "AWS_ALLOW_HTTP": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_ACCESS_KEY_ID": os.environ[access.access_key_variable],
        "AWS_SECRET_ACCESS_KEY": os.environ[access.secret_key_variable],
    }


def environment(endpoint: str) -> dict[str, str]:
    """Environment variables by which a process reaches the store at an address of this machine, as users give them."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": os.environ[KEY],
        "AWS_SECRET_ACCESS_KEY": os.environ[SECRET],
    }


def copy_over(source: str, target: str) -> None:
    """Replace a directory in the store by a copy of another one."""
    there = open_location(target)
    if there.is_directory():
        there.delete_directory()
    here = open_location(source)
    pafs.copy_files(here.path, there.path, source_filesystem=here.fs, destination_filesystem=there.fs)


def has_bucket(port: int, bucket: str) -> bool:
    """Whether the server at a port of this machine is up, and has the bucket now."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 409  # it has it already
    except OSError:
        return False
