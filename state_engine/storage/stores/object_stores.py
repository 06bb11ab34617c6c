"""``StoreAccess``: how S3-compatible stores are reached, described once, for pyarrow, Hadoop and workers alike.

The description comes from the section ``[storage]`` of the settings, and where that is silent from the environment, in
the variables that Amazon's own tools read. It holds names of variables, never keys: whoever needs a key looks it up
where it is used, so that no key stands in a table, a log, Spark's settings or a task's description.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any
from urllib.parse import urlparse

import pyarrow.fs as pafs

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError

S3_SCHEMES = ("s3a", "s3")
"""Schemes of S3-compatible stores; Hadoop reaches all of them by S3A."""

VARIABLE = "STATELAKE_STORAGE"
"""Environment variable that describes to workers how stores are reached."""

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROFILE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
_KEYS_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
)
"""For keys without and with the token of a session."""
_ANY_REGION = "us-east-1"
"""For stores of one's own, which have no regions, and clients that want one."""


@checked_class
@dataclass(frozen=True)
class StoreAccess:
    """How S3-compatible stores are reached.

    Attributes:
        endpoint: URL of the store; empty for Amazon's own.
        region: of its buckets; empty where the store says it, or has none.
        path_style: whether buckets stand in the path of URLs; None: where an endpoint is given.
        profile: of the files that Amazon's tools keep keys in; empty for none.
        access_key_variable, secret_key_variable, session_token_variable: environment variables that hold the keys.
        buckets: that are reached like this; none for all that no other description names.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    profile: str = ""
    access_key_variable: str = "AWS_ACCESS_KEY_ID"
    secret_key_variable: str = "AWS_SECRET_ACCESS_KEY"
    session_token_variable: str = "AWS_SESSION_TOKEN"
    buckets: tuple[str, ...] = ()

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read where settings are validated

    def __post_init__(self) -> None:
        if self.endpoint and not re.fullmatch(r"https?://[^/@\s]+/?", self.endpoint):
            raise ConfigurationError(
                "storage.endpoint must be http(s)://, a host and a port, without a user or a path"
            )

    @property
    def key_variables(self) -> tuple[str, str, str]:
        """Names of the environment variables that hold the key, its secret, and the token of a session."""
        return self.access_key_variable, self.secret_key_variable, self.session_token_variable

    def completed(self, environ: Mapping[str, str]) -> StoreAccess:
        """The same, with what the environment says where this says nothing.

        Example:
            >>> StoreAccess().completed({"AWS_REGION": "eu-west-1"}).region
            'eu-west-1'
        """
        endpoint = self.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL", "")
        endpoint = endpoint.rstrip("/")
        region = self.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION", "")
        return replace(
            self,
            endpoint=endpoint,
            region=region or (_ANY_REGION if endpoint else ""),
            path_style=bool(endpoint) if self.path_style is None else self.path_style,
            profile=self.profile or environ.get("AWS_PROFILE", ""),
        )

    def hadoop_options(self, environ: Mapping[str, str], bucket: str = "") -> dict[str, str]:
        """Options of Hadoop's S3A, keys among them.

        Args:
            environ: where the keys are.
            bucket: gets these options for itself; none for all others.
        """
        options: dict[str, str] = {}
        if self.endpoint:
            options["endpoint"] = self.endpoint
            options["connection.ssl.enabled"] = str(self.endpoint.startswith("https:")).lower()
        if self.region:
            options["endpoint.region"] = self.region
        if self.path_style or bucket:
            options["path.style.access"] = str(bool(self.path_style)).lower()
        if self.profile:
            options["aws.credentials.provider"] = _PROFILE_PROVIDER
            options["auth.profile.name"] = self.profile
        else:
            names = zip(("access.key", "secret.key", "session.token"), self.key_variables, strict=True)
            keys = {key: environ[name] for key, name in names if environ.get(name)}
            if keys and bucket:  # not as others are reached
                options["aws.credentials.provider"] = _KEYS_PROVIDERS["session.token" in keys]
            options |= keys
        start = f"fs.s3a.bucket.{bucket}." if bucket else "fs.s3a."
        return {f"fs.{scheme}.impl": _S3A for scheme in S3_SCHEMES} | {
            start + k: v for k, v in options.items()
        }

    def file_system(self, environ: Mapping[str, str]) -> pafs.FileSystem:
        """A file system of pyarrow; it asks for keys where it keeps them, if the environment has none."""
        options: dict[str, Any] = {"allow_delayed_open": True}  # small files are one request, not three
        if self.endpoint:
            parsed = urlparse(self.endpoint)
            options |= {"endpoint_override": parsed.netloc, "scheme": parsed.scheme}
            options["force_virtual_addressing"] = not self.path_style
        if self.region:
            options["region"] = self.region
        if environ.get(self.access_key_variable) and not self.profile:
            options["access_key"] = environ[self.access_key_variable]
            options["secret_key"] = environ.get(self.secret_key_variable, "")
            options["session_token"] = environ.get(self.session_token_variable) or None
        with _profile(self.profile):
            return pafs.S3FileSystem(**options)


_PROFILE = Lock()


@contextmanager
def _profile(name: str) -> Iterator[None]:
    """Within this, a file system is made for a profile: pyarrow has no argument for it, only the environment."""
    if not name:
        yield
        return
    with _PROFILE:
        before = os.environ.get("AWS_PROFILE")
        os.environ["AWS_PROFILE"] = name
        try:
            yield
        finally:
            os.environ.pop("AWS_PROFILE")
            if before is not None:
                os.environ["AWS_PROFILE"] = before


class KnownStores:
    """How a process reaches each bucket: as it was described, else as its environment says.

    There is one way to a bucket, for Java keeps a file system for each (decision 0108).
    """

    def __init__(self) -> None:
        self._described: dict[str, StoreAccess] = {}
        self._used: dict[str, StoreAccess] = {}
        self._lock = Lock()

    @property
    def are_described(self) -> bool:
        """Whether somebody said how to reach the buckets that no description names."""
        return "" in self._described

    @property
    def by_bucket(self) -> dict[str, StoreAccess]:
        """The way to each bucket that is described; under "" that to all others."""
        described = json.loads(os.environ.get(VARIABLE, "{}"))
        ways = {bucket: StoreAccess(**fields) for bucket, fields in described.items()} | self._described
        return ways if "" in ways else ways | {"": StoreAccess().completed(os.environ)}

    def describe(self, access: StoreAccess, *, bucket: str = "") -> None:
        """Say how the buckets that a description names are reached; all others, where it names none.

        Args:
            access: one that says nothing changes nothing.
            bucket: another one that is reached like this.

        Raises:
            ConfigurationError: one of them is reached in another way already.
        """
        names = {*access.buckets, bucket} - {""} or {""}
        says_something, access = access != StoreAccess(), replace(access.completed(os.environ), buckets=())
        with self._lock:
            known = self._used | self._described
            other = [name for name in sorted(names) if known.get(name, access) != access]
            if other and says_something:
                what = f"bucket '{other[0]}'" if other[0] else "object stores"
                raise ConfigurationError(
                    f"this process reaches {what} in another way already, at {known[other[0]].endpoint or 'Amazon'}, "
                    "and its Java keeps one way to each bucket: give the same [storage]; or name the buckets that are "
                    "reached in each way (storage.buckets), which must be different ones; or use a process for each way"
                )
            self._described.update(dict.fromkeys(names - set(other), access))

    def access(self, bucket: str = "") -> StoreAccess:
        """The way to a bucket, or to all that no description names."""
        ways = self.by_bucket
        return ways.get(bucket) or ways[""]

    def worker_environment(self) -> dict[str, str]:
        """Environment variables by which a worker on another machine reaches the same stores, keys among them."""
        ways = self.by_bucket
        keys = {
            name: os.environ[name]
            for one in ways.values()
            for name in one.key_variables
            if os.environ.get(name)
        }
        described = {
            bucket: {k: v for k, v in asdict(one).items() if k != "buckets"} for bucket, one in ways.items()
        }
        return {VARIABLE: json.dumps(described)} | keys

    def file_system(self, bucket: str) -> pafs.FileSystem:
        """A file system of pyarrow for a bucket; one for all who ask alike."""
        access = self.access(bucket)
        self._used.setdefault(bucket, access)
        keys = tuple((name, os.environ[name]) for name in access.key_variables if name in os.environ)
        return _file_system(access, keys, bucket)


PROCESS_STORES = KnownStores()


@lru_cache(maxsize=16)
def _file_system(access: StoreAccess, keys: tuple[tuple[str, str], ...], bucket: str) -> pafs.FileSystem:
    if not access.region:
        access = replace(access, region=pafs.resolve_s3_region(bucket))
    return access.file_system(dict(keys))
