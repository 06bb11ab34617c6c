"""On HDFS and Azure, where nobody can lock, a ``FileSink`` has one owner, and whoever lost it changes nothing.

The engine's own code on a file system in memory that renames as HDFS does.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from state_engine import FileSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import (
    ConfigurationError,
    LockTimeoutError,
    SinkError,
    SinkIdentityError,
    StatelakeError,
    StorageError,
)
from state_engine.operations import file_collector
from state_engine.sinks import file_owner
from state_engine.sinks.file_owner import Look, as_owner
from state_engine.sinks.spark_writer import note_of
from state_engine.storage.stores import files, locks
from state_engine.storage.stores.files import Location, open_location
from tests.protocol.interleaving import Actor, actor_here, interleave, run_out, step
from tests.protocol.passing_time import Clock
from tests.sinks.file_world import CHANGES, SCHEMA, Around, FileWorld, Worlds, runners_that_stop
from tests.sinks.requests import APP, asked
from tests.support.hdfs_like import HdfsLike

FEW, ALL, TOGETHER, BROKEN = 60, 6000, 500, 100
"""Seeds: in every run of the tests, in those of faults, in one test of these, and with a rule that is broken."""
NO_ANSWER = 0.004
"""How likely a change is not made, or is made and its answer is lost."""
URI = "hdfs://model/out"
HOME = "_staged-0196f3c0a1b27c3d8e4f5a6b7c8d9e0f"


@contextmanager
def world_with(around: Around, seed: int = 0) -> Iterator[FileWorld]:
    """A world that the engine reaches as ``hdfs://model``, with names by a seed."""
    fs, names = HdfsLike(), random.Random(seed)
    world = FileWorld(around, fs, URI)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_remote", fs.location)
        patch.setattr(file_owner, "uuid4", lambda: UUID(int=names.getrandbits(128)))
        patch.setattr(file_owner.time, "sleep", lambda _: step("pause"))
        yield world


def in_memory(world: FileWorld) -> HdfsLike:
    """Its file system."""
    assert isinstance(world.fs, HdfsLike)
    return world.fs


def undisturbed(_: str, __: str, act: Callable[[], Any]) -> Any:
    return act()


# -- any schedule ----------------------------------------------------------------------------------------------------


def runners_in_turns(seed: int, worlds: Worlds) -> None:
    """Runners that take turns at every operation, are killed, are refused, sleep, and wake up when all is over."""
    dice, trace = random.Random(seed), list[str]()

    def around(kind: str, path: str, act: Callable[[], Any]) -> Any:
        actor = actor_here()
        if actor is None:
            return act()
        step(f"{kind} {path}")
        refused = actor.dice.random() if kind in CHANGES else 1
        if refused < NO_ANSWER / 2:
            raise StorageError(f"{path}: refused")
        result = act()
        if refused < NO_ANSWER:
            raise StorageError(f"{path}: the answer is lost")
        return result

    with worlds(around, seed) as world:
        crew, actors = list[Actor](), list[Actor]()
        for number in range(dice.randint(2, 4)):
            own = random.Random(dice.random())
            body = functools.partial(world.run, own, own.randint(1, 4))
            actors.append(Actor(f"runner {number}", body, _may_fail, own, trace, crew=crew))
        try:
            run_out(interleave(actors, dice, trace, Clock()), dice)
            world.run(random.Random(seed), 1)
        except AssertionError as error:
            error.add_note("\n".join([f"seed {seed}", *trace[-400:]]))
            raise


def _may_fail(error: StatelakeError) -> bool:
    """Whether a runner may fail so."""
    return isinstance(error, StorageError | LockTimeoutError)


SCHEDULES = pytest.mark.parametrize("schedule", [runners_that_stop, runners_in_turns])


@SCHEDULES
def test_some_schedules(schedule: Callable[[int, Worlds], None]) -> None:
    for seed in range(FEW):
        schedule(seed, world_with)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, ALL, TOGETHER))
@SCHEDULES
def test_many_schedules(schedule: Callable[[int, Worlds], None], first: int) -> None:
    for seed in range(first, first + TOGETHER):
        schedule(seed, world_with)


# -- each rule is needed ---------------------------------------------------------------------------------------------


def nobody_takes_over(patch: pytest.MonkeyPatch) -> None:
    """All use the first owner's directory: every step is as it is, but there is no fence."""

    def shared(uri: str, at: Location, write_new: Any) -> str:
        return file_owner._owner_now(at) or take_over(uri, at, write_new)

    take_over = file_owner._take_over
    patch.setattr(file_owner, "_take_over", shared)


def looks_before_it_takes_over(patch: pytest.MonkeyPatch) -> None:
    """What it saw may be done by others until the sink is its own."""
    take_over, looks = file_owner._take_over, dict[str, Look]()

    def early(uri: str, at: Location, write_new: Any) -> str:
        look = Look.of(at, file_owner._owner_now(at))
        owner = take_over(uri, at, write_new)
        aside = {name: f"{owner}/{name}" if "/" in path else name for name, path in look.aside.items()}
        looks[owner] = replace(look, owner=owner, aside=aside)
        return owner

    patch.setattr(file_owner, "_take_over", early)
    patch.setattr(file_owner, "_adopted", lambda _, owner: looks[owner])


@pytest.mark.parametrize("broken", [nobody_takes_over, looks_before_it_takes_over])
def test_schedules_go_wrong_without_a_rule(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong is what readers see, not only that a runner fails."""

    def goes_wrong(seed: int) -> bool:
        try:
            runners_that_stop(seed, world_with)
        except AssertionError:
            return True
        except (StatelakeError, OSError):
            return False
        return False

    broken(monkeypatch)
    with world_with(undisturbed) as world:
        for seed in range(10):  # a runner that is alone needs none of it
            world.run(random.Random(seed), 4)
    assert any(map(goes_wrong, range(BROKEN)))


# -- one runner that stands still at one step ------------------------------------------------------------------------


def batches(world: FileWorld) -> None:
    """Three micro-batches, the last of which is not published."""
    sink = world.prepared("w0")
    for number in (1, 2, 3):
        world.publish_pending()
        world.commit(replace(sink, files=world.stage(f"{number:032x}", 2)))


def batches_and_a_restore(world: FileWorld) -> None:
    """A restore that is not published: it takes back one batch, and one of two that a promotion brought together."""
    batches(world)
    world.publish_pending()
    one, two, three = world.rows
    both = [*two.files, *three.files]
    for row in (
        replace(two, files=[], withdrawn=both),
        replace(two, files=both, withdrawn=[]),
        replace(one, files=[], withdrawn=[*one.files, *three.files]),
    ):
        world.publish_pending()
        world.commit(row)


def batches_and_an_exchange(world: FileWorld) -> None:
    """A row that is not published takes one batch back and brings another one again."""
    batches(world)
    world.publish_pending()
    one, two, _ = world.rows
    for row in (replace(two, files=[], withdrawn=two.files), replace(two, withdrawn=one.files)):
        world.publish_pending()
        world.commit(row)


def restored(world: FileWorld) -> None:
    """Another runner publishes it; a restore withdraws it, a promotion brings it back, and a part of that goes."""
    world.publish_pending()
    _, two, three = world.rows
    both = [*two.files, *three.files]
    for row in (
        replace(two, files=[], withdrawn=both),
        replace(two, files=both, withdrawn=[]),
        replace(two, files=[], withdrawn=three.files),
    ):
        world.commit(row)
        world.publish(row, len(world.rows))


def exchanged_again(world: FileWorld) -> None:
    """Another runner does what is left of that, and brings the first batch again."""
    world.publish_pending()
    world.commit(replace(world.rows[0], withdrawn=[]))
    world.publish_pending()


def brought_back(world: FileWorld) -> None:
    """Another runner ends the restore; two promotions bring files back, and the first of these goes."""
    world.publish_pending()
    one, two, three, *_ = world.rows
    for row in (
        replace(three, files=[*three.files, *one.files], withdrawn=[]),
        replace(two, files=[], withdrawn=[*two.files, *three.files]),
    ):
        world.commit(row)
        world.publish(row, len(world.rows))


def stands_still(
    before: Callable[[FileWorld], None], meanwhile: Callable[[FileWorld], None], *, at_step: int
) -> bool:
    """Have a runner that publishes stand still before its nth operation; whether it has so many."""
    left, publishing = [at_step], [False]

    def around(_: str, __: str, do: Callable[[], Any]) -> Any:
        if publishing[0]:
            left[0] -= 1
            if left[0] < 0:
                publishing[0] = False
                meanwhile(world)
        return do()

    with world_with(around) as world:
        before(world)
        publishing[0] = True
        world.publish_pending()
        assert world.shown == len(world.rows)
        world.check()
        return not publishing[0]


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [(batches, restored), (batches_and_a_restore, brought_back), (batches_and_an_exchange, exchanged_again)],
)
def test_who_wakes_up_at_any_step_changes_nothing_any_more(
    before: Callable[[FileWorld], None], meanwhile: Callable[[FileWorld], None]
) -> None:
    steps = 0
    while stands_still(before, meanwhile, at_step=steps):
        steps += 1
    assert steps > 50


# -- the owner itself ------------------------------------------------------------------------------------------------


def test_two_first_runners_make_one_sink_and_one_owner() -> None:
    """One begins at every step of the other."""
    for at_step in range(100):
        left, ids = [at_step], set[str]()

        def around(
            _: str, __: str, do: Callable[[], Any], left: list[int] = left, ids: set[str] = ids
        ) -> Any:
            left[0] -= 1
            if left[0] == -1:
                ids.add(world.prepared("w1").identity)
            return do()

        with world_with(around) as world:
            ids.add(world.prepared("w0").identity)
            begun = [path for path in in_memory(world).directories if path.startswith("model/out/_owner-")]
            assert (len(ids), len(begun)) == (1, 1)
            if left[0] >= 0:
                assert at_step > 8
                return


def test_a_sink_that_nobody_published_to_is_taken_over_by_one_of_two() -> None:
    def begin(world: FileWorld, app: str) -> StagedSink:
        request = asked(world.kernel, SCHEMA, "w1", app=app, root="file:///roots/one")
        return FileSink(URI).prepare(request).staged([])

    with world_with(undisturbed) as world:
        failed, newer = begin(world, APP), begin(world, "4567/job/out")
        world.publisher.check_identity(newer)
        with pytest.raises(SinkIdentityError, match="re-created"):
            world.publisher.check_identity(failed)
        with pytest.raises(SinkIdentityError, match="re-created"):
            world.publisher.publish(replace(failed, files=world.stage("1" * 32, 1)), APP, 1)
        own = replace(newer, files=world.stage("2" * 32, 1))
        world.commit(own)
        world.publisher.publish(own, "4567/job/out", 1)
        with pytest.raises(SinkIdentityError, match="is the sink of '4567/job/out'"):
            begin(world, APP)


def test_what_an_earlier_version_kept_beside_is_brought_to_the_owner() -> None:
    """It stopped after the note of the second checkpoint, and had moved one file of it."""
    with world_with(undisturbed) as world:
        sink = world.prepared("w0")
        for path in [p for p in in_memory(world).files if "_owner" in p]:
            del in_memory(world).files[path]
        in_memory(world).directories -= {path for path in in_memory(world).directories if "_owner" in path}
        one, two = (replace(sink, files=world.stage(f"{number:032x}", 2)) for number in (1, 2))
        at = open_location(URI)
        world.commit(one)
        world.commit(two)
        at.inside(one.files[0].path).above().move(f"{at.path}/checkpoint_id=000000000001")
        at.inside("_joining-000000000002").make_directory()
        name = two.files[0].path.split("/")[1]
        at.inside(two.files[0].path).move(f"{at.path}/_joining-000000000002/{name}")
        note = {"checkpoint_id": 2, "before": 1, "files": note_of(two)}
        at.inside("_published.json").write(json.dumps(note).encode())
        assert world.publisher.seen(URI, APP) == 1
        assert world.publish_pending() == 2
        assert world.publisher.seen(URI, APP) == 2
        hidden = [name for name in at.names() if name.startswith("_") and not name.startswith("_owner")]
        assert hidden == ["_statelake_sink.json"]


def test_what_a_runner_wrote_aside_and_lost_is_removed() -> None:
    with world_with(undisturbed) as world:
        batches(world)
        open_location(URI).inside("_writing-0123-published.json").write(b"{}")
        open_location(URI).inside("_writing-0123-joining").make_directory()
        world.publish_pending()
        assert not [
            path for path in (*in_memory(world).files, *in_memory(world).directories) if "_writing" in path
        ]


def test_who_is_overtaken_time_and_again_may_fail_to_run_again() -> None:
    with world_with(undisturbed) as world:
        world.prepared("w0")

        def overtaken(_: Look) -> None:
            as_owner(URI, lambda _: None, world.fs.write_new)

        with pytest.raises(LockTimeoutError, match=r"took this sink over, 8 times.*your next run does"):
            as_owner(URI, overtaken, world.fs.write_new)


def test_an_owner_that_is_gone_is_an_error_that_says_what_to_do() -> None:
    with world_with(undisturbed) as world:
        world.prepared("w0")
        for path in [path for path in in_memory(world).directories if "_owner-" in path]:
            open_location("hdfs://" + path).delete_directory()
        with pytest.raises(SinkError, match=r"_owner-\w+-… is gone.*Put it back"):
            world.publisher.seen(URI, APP)


def test_a_storage_that_cannot_rename_directories_is_refused_before_anything_is_staged() -> None:
    def around(kind: str, _: str, act: Callable[[], Any]) -> Any:
        if kind == "rename":
            raise NotImplementedError("no hierarchical namespace")
        return act()

    with (
        world_with(around) as world,
        pytest.raises(ConfigurationError, match=r"atomic rename.*use a DeltaSink"),
    ):
        world.prepared("w0")


# -- the collector -----------------------------------------------------------------------------------------------------


def test_an_empty_directory_that_a_restore_may_bring_files_back_to_is_left_alone() -> None:
    """Where nobody can lock, listing it and deleting it are two steps, and files may come between them."""
    with world_with(undisturbed) as world:
        open_location(URI).inside(HOME).make_directory()
        file_collector._drop_empty(URI, HOME)
        assert f"model/out/{HOME}" in in_memory(world).directories


def test_on_a_disk_it_goes_under_the_lock_of_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, uri = tmp_path / HOME, f"file://{tmp_path}"
    home.mkdir()
    with monkeypatch.context() as patch:
        patch.setitem(locks.table_lock.__wrapped__.__kwdefaults__, "timeout_s", 0.05)  # type: ignore[attr-defined]
        with locks.table_lock(uri), pytest.raises(LockTimeoutError):
            file_collector._drop_empty(uri, home.name)
    assert home.is_dir()
    file_collector._drop_empty(uri, home.name)
    assert not home.exists()
