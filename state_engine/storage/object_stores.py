"""``StoreAccess``: how S3-compatible stores are reached, described once, for pyarrow, Hadoop and workers alike.

The description comes from the section ``[storage]`` of the settings, and where that is silent from the environment, in
the variables that Amazon's own tools read. It holds names of variables, never keys: whoever needs a key looks it up
where it is used, so that no key stands in a table, a log, Spark's settings or a task's description.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlparse

import pyarrow.fs as pafs

S3_SCHEMES = ("s3a", "s3")
"""Schemes of S3-compatible stores; Hadoop reaches all of them by S3A."""

VARIABLE = "STATELAKE_STORAGE"
"""Environment variable that describes to workers how stores are reached."""

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROFILE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
_ANY_REGION = "us-east-1"
"""For stores of one's own, which have no regions, and clients that want one."""


@dataclass(frozen=True)
class StoreAccess:
    """How S3-compatible stores are reached.

    Attributes:
        endpoint: URL of the store; empty for Amazon's own.
        region: of its buckets; empty where the store says it, or has none.
        path_style: whether buckets stand in the path of URLs; None: where an endpoint is given.
        profile: of the files that Amazon's tools keep keys in; empty for none.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    profile: str = ""
    access_key_variable: str = "AWS_ACCESS_KEY_ID"
    secret_key_variable: str = "AWS_SECRET_ACCESS_KEY"
    session_token_variable: str = "AWS_SESSION_TOKEN"

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read where settings are validated

    def __post_init__(self) -> None:
        if self.endpoint and not re.fullmatch(r"https?://[^/@\s]+/?", self.endpoint):
            raise ValueError(
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

    def hadoop_options(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Options of Hadoop's S3A, keys among them."""
        options = {f"fs.{scheme}.impl": _S3A for scheme in S3_SCHEMES}
        if self.endpoint:
            options["fs.s3a.endpoint"] = self.endpoint
            options["fs.s3a.connection.ssl.enabled"] = str(self.endpoint.startswith("https:")).lower()
        if self.region:
            options["fs.s3a.endpoint.region"] = self.region
        if self.path_style:
            options["fs.s3a.path.style.access"] = "true"
        if self.profile:
            options["fs.s3a.aws.credentials.provider"] = _PROFILE_PROVIDER
            options["fs.s3a.auth.profile.name"] = self.profile
        else:
            keys = zip(("access.key", "secret.key", "session.token"), self.key_variables, strict=True)
            options |= {f"fs.s3a.{key}": environ[name] for key, name in keys if environ.get(name)}
        return options

    def worker_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment variables by which a worker on another machine reaches the same stores, keys among them."""
        keys = {name: environ[name] for name in self.key_variables if environ.get(name)}
        return {VARIABLE: json.dumps(asdict(self))} | keys

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
        return pafs.S3FileSystem(**options)


_used: StoreAccess | None = None


def use_stores(access: StoreAccess) -> None:
    """Reach S3-compatible stores like this from now on, in this process."""
    global _used
    _used = access.completed(os.environ)
    if access.profile:
        os.environ["AWS_PROFILE"] = access.profile  # pyarrow has no argument for it


def stores_are_known() -> bool:
    """Whether ``use_stores`` was called in this process."""
    return _used is not None


def store_access() -> StoreAccess:
    """How this process reaches S3-compatible stores: by ``use_stores``, else by its environment."""
    if _used is not None:
        return _used
    described = json.loads(os.environ[VARIABLE]) if VARIABLE in os.environ else {}
    return StoreAccess(**described).completed(os.environ)


def s3_file_system(bucket: str) -> pafs.FileSystem:
    """A file system of pyarrow for a bucket; one for all who ask alike."""
    access = store_access()
    keys = tuple((name, os.environ[name]) for name in access.key_variables if name in os.environ)
    return _file_system(access, keys, bucket)


@lru_cache(maxsize=16)
def _file_system(access: StoreAccess, keys: tuple[tuple[str, str], ...], bucket: str) -> pafs.FileSystem:
    if not access.region:
        access = replace(access, region=pafs.resolve_s3_region(bucket))
    return access.file_system(dict(keys))
