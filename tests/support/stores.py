"""Object stores in tests: how a process is brought to reach one, and how readers do that are not the engine's."""

from __future__ import annotations

import os

from state_engine.storage.object_stores import StoreAccess, store_access

KEY, SECRET = "STORE_KEY", "STORE_SECRET"
"""Environment variables that hold the keys."""


def access_to(endpoint: str) -> StoreAccess:
    """The description of a store at an address of this machine."""
    return StoreAccess(endpoint=endpoint, access_key_variable=KEY, secret_key_variable=SECRET)


def delta_rs_options() -> dict[str, str]:
    """How delta-rs reaches the store that this process uses."""
    access = store_access()
    return {
        "AWS_ENDPOINT_URL": access.endpoint,
        "AWS_REGION": access.region,
        "AWS_ALLOW_HTTP": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_ACCESS_KEY_ID": os.environ[access.access_key_variable],
        "AWS_SECRET_ACCESS_KEY": os.environ[access.secret_key_variable],
    }
