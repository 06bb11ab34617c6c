"""Settings: one typed TOML file, overridden by the environment; mirrors Flink's ``GlobalConfiguration``.

``statelake.toml`` is looked up in the current directory, or named by ``STATELAKE_CONFIG``. A variable
``STATELAKE__SECTION__KEY`` overrides one value, for example ``STATELAKE__SPARK__MASTER=local[4]``. Every value
knows where it came from, a key that does not exist is an error, and secrets never appear in a text.
Guarantees nothing about Spark: what is set here is data; ``session.py`` makes components of it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from state_engine.core.argument_checks import checked_function
from state_engine.core.errors import SettingsError
from state_engine.core.json_text import parsed_json
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.stores.object_stores import StoreAccess

FILE_NAME = "statelake.toml"
FILE_VARIABLE = "STATELAKE_CONFIG"
PREFIX = "STATELAKE__"
MASK = "********"
DEFAULT_ROOT = ".statelake/state"
_LISTS = (["jobs", "modules"], ["jobs", "package_data"])

_SECRET_KEY = re.compile(r"pass(word|wd|phrase)|secret|token|credential|key", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def _option_texts(value: object) -> object:
    """Spark's options as texts under dotted names; a TOML table ``sql.shuffle`` means the same as the name."""
    return dict(_flattened(value, "")) if isinstance(value, Mapping) else value


def _flattened(options: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SparkSettings(_Section):
    """Section ``[spark]``: the session that the engine starts when it is given none."""

    master: str = "local[*]"
    driver_memory: str = Field(default="4g", pattern=r"^\d+[kmgt]$")
    options: Annotated[dict[str, str], BeforeValidator(_option_texts)] = {}
    jars_dir: Path | None = None
    java_home: Path | None = None


class JobsSettings(_Section):
    """Section ``[jobs]``: the modules that hold jobs, and the parameters of each job by its name.

    Executors of a cluster are sent the modules' ``*.py`` files, and of their other files those that ``package_data``
    names by pattern, such as ``jobs/models/*.json``.
    """

    modules: list[str] = []
    package_data: list[str] = []
    parameters: dict[str, dict[str, Any]] = {}


class LocalCopySettings(_Section):
    """Section ``[local_copies]``: copies of large files of state on the machines that run subtasks."""

    directory: Path | None = None
    max_size: str = Field(default="10g", pattern=r"^(0|\d+[kmgt])$")

    def described(self) -> LocalCopies:
        number, unit = self.max_size.rstrip("kmgt"), self.max_size[-1]
        power = " kmgt".find(unit)
        directory = None if self.directory is None else str(self.directory.expanduser().absolute())
        return LocalCopies(directory, int(number) << 10 * max(power, 0))


class TelemetrySettings(_Section):
    """Section ``[telemetry]``: what runs tell the monitoring of the site, see the guide."""

    opentelemetry: bool = False


class LoggingSettings(_Section):
    """Section ``[logging]``: what the commands show of the engine's log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    format: Literal["text", "json"] = "text"


class Settings(_Section):
    """All settings.

    Attributes:
        root: where state lives, a directory or any location that Spark can write.
        durability: whether commits to local directories wait for the disk, see ``StateEngine``.
        storage: how stores with S3's interface are reached.
        local_copies: of large files of state, on the machines that run subtasks.
    """

    root: str = DEFAULT_ROOT
    durability: Literal["sync", "os"] = "sync"
    spark: SparkSettings = SparkSettings()
    jobs: JobsSettings = JobsSettings()
    storage: StoreAccess = StoreAccess()
    local_copies: LocalCopySettings = LocalCopySettings()
    logging: LoggingSettings = LoggingSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


@dataclass(frozen=True, kw_only=True)
class SettingRow:
    """One effective value as it may be shown: secrets are masked."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, kw_only=True)
class LoadedSettings:
    """Settings with the origin of every key that is not a default."""

    settings: Settings
    origins: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def rows(self) -> list[SettingRow]:
        """Every effective value, where it came from, secrets masked."""
        rows = []
        for path, value in _leaves(self.settings.model_dump(), ()):
            key = ".".join(path)
            origin = self.origins.get(key) or self.origins.get(".".join(path[:-1])) or "default"
            rows.append(SettingRow(key=key, value=_shown(path, value), origin=origin))
        return rows


def load(*, environ: Mapping[str, str], directory: Path) -> LoadedSettings:
    """Reads the settings file, if there is one, and the variables over it.

    Args:
        directory: where ``statelake.toml`` is looked up, and what a relative default root is below.
    """
    file = _settings_file(environ=environ, directory=directory)
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    of_file = _read_toml(file) if file is not None else {}
    try:
        _merge(data, of_file, origins=origins, origin=str(file))
        for name in sorted(key for key in environ if key.startswith(PREFIX)):
            _merge(data, _from_variable(name, environ[name]), origins=origins, origin=f"${name}")
        settings = _validated(data, origins)
    except RecursionError:
        raise SettingsError(f"{file or PREFIX}: tables or lists are nested too deeply for settings") from None
    # A path in a file is relative to that file, so that a job finds its state from any directory.
    base = file.parent if file is not None and origins.get("root") == str(file) else directory
    settings = settings.model_copy(update={"root": _absolute(settings.root, base)})
    return LoadedSettings(settings=settings, origins=origins, file=file)


@checked_function
def load_settings(*, environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Settings:
    """The effective settings of this process; see :func:`load`."""
    environ = os.environ if environ is None else environ
    return load(environ=environ, directory=directory or Path.cwd()).settings


def _settings_file(*, environ: Mapping[str, str], directory: Path) -> Path | None:
    if named := environ.get(FILE_VARIABLE):
        file = (directory / Path(named).expanduser()).absolute()
        if not file.is_file():
            raise SettingsError(f"{FILE_VARIABLE} names {file}, which is not a file: correct or unset it")
        return file
    file = (directory / FILE_NAME).absolute()
    return file if file.is_file() else None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file} cannot be read as TOML: {error}") from error


def _from_variable(name: str, text: str) -> dict[str, Any]:
    """The nested dict that one variable stands for; names of settings are lower case, option names are not."""
    parts = name.removeprefix(PREFIX).split("__")
    path = [part if "options" in parts[:i] else part.lower() for i, part in enumerate(parts)]
    path = ["options" if part.lower() == "options" else part for part in path]
    value: Any = _value(path, text)
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _value(path: list[str], text: str) -> Any:
    """Lists, tables and job parameters are JSON; other values stay text, which their type then reads."""
    if text.startswith(("[", "{")) or path[:2] == ["jobs", "parameters"]:
        try:
            return parsed_json(text)
        except ValueError:
            return text
    return [part.strip() for part in text.split(",")] if path in _LISTS else text


def _merge(
    into: dict[str, Any], new: Mapping[str, Any], *, origins: dict[str, str], origin: str, path: str = ""
) -> None:
    for key, value in new.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = dict(below) if isinstance(below, Mapping) else {}
            _merge(into[key], value, origins=origins, origin=origin, path=f"{name}.")
        else:
            into[key] = value
            origins[name] = origin


def _validated(data: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        # Pydantic's own text would repeat the input, and with it a secret.
        problems = [_problem(item["type"], item["loc"], item["msg"], origins) for item in error.errors()]
        raise SettingsError("\n".join(problems)) from None


def _problem(kind: str, location: tuple[int | str, ...], message: str, origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in location)
    origin = next(
        (origins[name] for name in origins if name == key or name.startswith(f"{key}.")), "settings"
    )
    if kind not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{origin}: {key}: {message}"
    # An unknown key may be misspelt, or stand in the wrong section: compare the last part as well.
    valid = list(_valid_keys(Settings, ""))
    near = difflib.get_close_matches(key, valid, n=1) or [
        name for name in valid if name.rsplit(".", 1)[-1] == str(location[-1])
    ]
    hint = f"did you mean '{near[0]}'?" if near else f"valid keys: {', '.join(valid)}"
    return f"{origin}: there is no setting '{key}': {hint}"


def _valid_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        if info.annotation is StoreAccess:
            yield from (f"{prefix}{name}.{one.name}" for one in fields(StoreAccess))
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _valid_keys(info.annotation, f"{prefix}{name}.")


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value


def _shown(path: tuple[str, ...], value: Any) -> str:
    free_form = len(path) > 2 and path[1] in ("options", "parameters")
    if free_form and any(_SECRET_KEY.search(part) for part in path[2:]):
        return MASK
    return "not set" if value is None else str(value)


def _absolute(root: str, base: Path) -> str:
    """The root as given when it is a location with a scheme, else as an absolute path."""
    if _URL.match(root):
        return root
    return str((base / Path(root).expanduser()).absolute())
