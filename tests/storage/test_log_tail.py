"""The end of a log after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_engine.core.errors import CommitFailedError
from state_engine.storage.delta.log import DeltaLog, is_whole
from state_engine.storage.delta.log_tail import LogDurability, mend_log
from state_engine.storage.stores import durability
from state_engine.storage.stores.durability import sync_directories, sync_files

ENTRY = '{"commitInfo":{}}\n{"add":{"path":"a.parquet"}}\n'


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    for version in range(3):
        (log / f"{version:020d}.json").write_text(ENTRY.replace("a.", f"{version}."))
    return log.parent


def entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


@pytest.mark.parametrize("content", ["", "\n", "\0" * 90, ENTRY[:-9], '{"commitInfo":{}}\n{"add', "[]\n"])
def test_an_entry_that_is_empty_or_cut_is_moved_aside(content: str, table: Path) -> None:
    entry(table, 2).write_text(content)
    assert not is_whole(content.encode())
    [aside] = mend_log(table.as_uri())
    assert not entry(table, 2).exists()
    assert aside.startswith(f".{entry(table, 2).name}.cut-")
    assert (table / "_delta_log" / aside).read_text() == content
    assert mend_log(table.as_uri()) == []


def test_a_checksum_of_a_version_that_is_not_there_goes_too(table: Path) -> None:
    """No reader opens a table whose checksums are ahead of its log."""
    checksums = [table / "_delta_log" / f"{version:020d}.crc" for version in (1, 2)]
    for checksum in checksums:
        checksum.write_text("{}")
    entry(table, 2).unlink()
    assert len(mend_log(table.as_uri())) == 1
    assert [checksum.exists() for checksum in checksums] == [True, False]


def hadoops_checksum(file: Path, *, blocks: int = 1) -> Path:
    """As Hadoop's local file system writes it beside a file: a header, and four bytes a block."""
    checksum = file.with_name(f".{file.name}.crc")
    checksum.write_bytes(bytes(8 + 4 * blocks))
    return checksum


def test_a_checksum_that_is_cut_goes_and_leaves_its_file(table: Path) -> None:
    """Hadoop reads a file without checksums, and none with too few."""
    hint = table / "_delta_log" / "_last_checkpoint"
    hint.write_text("{}")
    entry(table, 2).write_text(ENTRY.replace("a.", f"{'a' * 600}."))
    whole, cut = hadoops_checksum(hint), hadoops_checksum(entry(table, 2), blocks=1)
    [aside] = mend_log(table.as_uri())
    assert aside.startswith(f".{cut.name}.cut-")
    assert (whole.exists(), cut.exists(), entry(table, 2).exists()) == (True, False, True)
    hadoops_checksum(entry(table, 2), blocks=2)
    assert mend_log(table.as_uri()) == []


@pytest.mark.parametrize("content", [None, "", ENTRY[:-9]])
def test_checksums_do_not_outlive_their_entry(content: str | None, table: Path) -> None:
    """Hadoop would compare the next entry of that version with them."""
    of_delta = table / "_delta_log" / f"{2:020d}.crc"
    kept, *left = [hadoops_checksum(file) for file in (entry(table, 1), entry(table, 2), of_delta)]
    if content is None:
        entry(table, 2).unlink()
    else:
        entry(table, 2).write_text(content)
    mend_log(table.as_uri())
    assert [one.exists() for one in (kept, *left)] == [True, False, False]
    assert mend_log(table.as_uri()) == []


def test_checksums_of_the_first_entry_do_not_outlive_it_either(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    left = hadoops_checksum(entry(tmp_path, 0))
    temporary = hadoops_checksum(log / f".{0:020d}.json.0b0cd2c6.tmp")
    mend_log(tmp_path.as_uri())
    assert (left.exists(), temporary.exists()) == (False, True)


def test_checksums_of_files_that_are_being_written_stay(table: Path) -> None:
    log = table / "_delta_log"
    temporary = hadoops_checksum(log / f".{3:020d}.json.0b0cd2c6.tmp")
    cleaned_up = hadoops_checksum(entry(table, 0))
    entry(table, 0).unlink()
    assert mend_log(table.as_uri()) == []
    assert temporary.exists()
    assert cleaned_up.exists()


NOTED = """{"commitInfo":{"userMetadata":"statelake 0123"}}
{"add":{"path":"k=a%20b/2.parquet","size":3}}
{"add":{"path":"3.parquet","size":3}}
"""


@pytest.fixture
def added(table: Path) -> list[Path]:
    """The files of the newest entry, which Spark committed for a sink."""
    entry(table, 2).write_text(NOTED)
    files = [table / "k=a b" / "2.parquet", table / "3.parquet"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("all")
    return files


@pytest.mark.parametrize("lost", ["gone", "empty", "cut"])
@pytest.mark.parametrize("number", [0, 1])
def test_an_entry_of_spark_without_its_files_was_not_committed(
    lost: str, number: int, table: Path, added: list[Path]
) -> None:
    assert mend_log(table.as_uri()) == []
    added[number].unlink()
    if lost != "gone":
        added[number].write_text("" if lost == "empty" else "al")
    [aside] = mend_log(table.as_uri())
    assert aside.startswith(f".{entry(table, 2).name}.cut-")


@pytest.mark.parametrize("of", ["somebody else", "an older one"])
def test_other_entries_may_lack_files(of: str, table: Path, added: list[Path]) -> None:
    """Whose files are synced first, or are somebody else's matter."""
    if of == "somebody else":
        entry(table, 2).write_text(NOTED.replace("statelake 0123", "of statelake 0123"))
    else:
        entry(table, 3).write_text(ENTRY)
    added[0].unlink()
    assert mend_log(table.as_uri()) == []


def test_readers_do_not_count_it_either(table: Path) -> None:
    entry(table, 2).write_text(ENTRY[:-9])
    log = DeltaLog(table.as_uri()).newest()
    assert log is not None
    assert log.version == 1
    assert log.files == {"0.parquet", "1.parquet"}


def test_a_table_whose_only_entry_is_cut_is_none(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").touch()
    assert DeltaLog(tmp_path.as_uri()).newest() is None


def test_whole_entries_stay_as_others_write_them(table: Path) -> None:
    entry(table, 2).write_text(ENTRY.rstrip("\n"))  # delta-rs ends no line
    assert mend_log(table.as_uri()) == []
    assert mend_log((table / "none").as_uri()) == []


def test_a_log_checkpoint_goes_only_where_its_entries_are_there(table: Path) -> None:
    log = table / "_delta_log"
    shortcut = log / f"{1:020d}.checkpoint.parquet"
    shortcut.touch()
    (log / "_last_checkpoint").write_text('{"ver')
    assert len(mend_log(table.as_uri())) == 2
    assert sorted(p.name for p in log.glob("[!.]*")) == [f"{v:020d}.json" for v in range(3)]
    shortcut.touch()
    entry(table, 0).unlink()
    assert mend_log(table.as_uri()) == []  # nothing else stands for version 0
    assert shortcut.exists()


# -- syncs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths in the order of their syncs."""
    paths: list[str] = []
    monkeypatch.setattr(durability, "fsync_path", paths.append)
    durability.forget()
    return paths


def test_an_entry_is_synced_once_and_with_those_before_it(table: Path, synced: list[str]) -> None:
    disk = LogDurability("sync")
    disk.entry(table.as_uri(), 0)
    assert str(entry(table, 0)) in synced
    synced.clear()
    disk.entry(table.as_uri(), 2, since=0)
    assert {str(entry(table, v)) for v in (1, 2)} <= set(synced)
    synced.clear()
    disk.entry(table.as_uri(), 2)
    disk.entry(table.as_uri(), 1)
    assert synced == []


def test_what_hadoop_wrote_is_synced_with_its_checksums(table: Path, synced: list[str]) -> None:
    disk, data = LogDurability("sync"), table / "a.parquet"
    data.touch()
    checksums = [hadoops_checksum(entry(table, 2)), hadoops_checksum(data)]
    disk.entry(table.as_uri(), 2)
    disk.files(table.as_uri(), [data.name], by_hadoop=True)
    assert {str(c) for c in checksums} <= set(synced)
    synced.clear()
    disk.files(table.as_uri(), [data.name])  # what the engine writes has none
    assert str(checksums[1]) not in synced


def test_the_operating_system_is_left_alone_where_asked_for(table: Path, synced: list[str]) -> None:
    disk = LogDurability("os")
    disk.entry(table.as_uri(), 2)
    disk.files(table.as_uri(), ["a.parquet"])
    assert synced == []


def test_files_come_before_the_names_up_to_that_of_the_root(tmp_path: Path, synced: list[str]) -> None:
    file = tmp_path / "root" / "a" / "b" / "x"
    file.parent.mkdir(parents=True)
    file.touch()
    sync_files([str(file)], below=str(tmp_path / "root"))
    assert synced[0] == str(file)
    above = {tmp_path, tmp_path / "root", tmp_path / "root/a", tmp_path / "root/a/b"}
    # and those above, which may have been made with it
    assert set(synced[1:]) == {str(p) for p in (*above, *tmp_path.parents)}
    synced.clear()
    file.with_name("y").touch()
    sync_files([str(file.with_name("y"))], below=str(tmp_path / "root"))
    assert not set(synced) & set(map(str, tmp_path.parents))


def test_a_directory_without_new_names_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for path in (old, tmp_path):
        os.utime(path, ns=(10**18, 10**18))  # long ago
    durability._sync_own_names(str(tmp_path))
    synced.clear()
    for _ in range(2):
        sync_directories([str(old)], below=str(old))
    assert sorted(synced) == sorted([str(old), str(tmp_path)])
    (old / "new").touch()
    sync_directories([str(old)], below=str(old))
    assert synced[2:] == [str(old)]


def test_files_that_were_deleted_before_their_commit_are_reported_as_such(table: Path) -> None:
    """The files of an attempt that slept until a collection deleted them as orphans."""
    (table / "kept.parquet").touch()
    with pytest.raises(CommitFailedError, match=r"gone\.parquet.*is gone.*Nothing was committed"):
        LogDurability("sync").files(table.as_uri(), ["kept.parquet", "write_id=1/gone.parquet"])
    LogDurability("os").files(table.as_uri(), ["write_id=1/gone.parquet"])


def test_an_entry_that_was_cleaned_up_needs_no_sync(table: Path) -> None:
    entry(table, 1).unlink()
    LogDurability("sync").entry(table.as_uri(), 2, since=0)


def test_a_directory_that_is_gone_is_passed_over_where_that_may_be(tmp_path: Path, synced: list[str]) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    with pytest.raises(FileNotFoundError):
        sync_directories([str(gone), str(there)], below=str(tmp_path))
    synced.clear()
    sync_directories([str(gone), str(there)], below=str(tmp_path), missing_ok=True)
    assert str(there) in synced
    assert str(gone) not in synced
