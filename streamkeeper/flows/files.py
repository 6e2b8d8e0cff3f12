"""Names of all files of a flow in the state folder. No other module spells them.

{state}/{pipeline}/{flow}/
  generations/000007.json          decision: immutable (streamkeeper.flows.generations)
  generations/000007.start.json    how it began: immutable, by the driver that began it
  generations/000007.replay-000042.json  steps of the history that its state is rebuilt from, by epoch 42
  generations/000007.last_run.json what its last driver ran (streamkeeper.trial.last_run)
  generations/000007.change.json what became of the newest change (streamkeeper.trial.change)
  generations/000007.done.json     a once flow has read all there was: immutable
  generations/000007.over.json     last commit when the first driver came to fence it: immutable
  generations/000001.adopted.json  last commit of the adopted query, recorded before it is fenced: immutable
  generations/000007.gone.json     its checkpoint is removed, written before: immutable
                                   (streamkeeper.recover.steps.clean_up)
  trial/                         copy of a checkpoint while a change is tried; removed afterwards
  checkpoints/000007-000042/       Spark's alone; made by the driver of lease epoch 42
  lease/000042.json                immutable, the highest epoch holds (streamkeeper.flows.leases)
  lease/000042.left.json           its holder left it in good order
  lease/000042.failed.json         failure that its holder ended with, for its supervisor
  lease/000042.silent.json         heartbeat that an observer saw unchanged for the lease's term; overwritten
  heartbeats/000042                overwritten by that epoch's driver alone
  supervisor                       overwritten by the task that watches the driver
                                   (streamkeeper.drivers.supervision)
  failures                         overwritten by that task: failures of drivers since the last batch
                                   (streamkeeper.watch.crash_loops)
  holds/<owner>.json               the flow must not run while any is there (streamkeeper.flows.holds)
  alerts/                          what people were told of the flow, and what not yet
                                   (streamkeeper.watch.alerts)
  recent.json                      overwritten by the driver: numbers of its last batches
                                   (streamkeeper.watch.batch_numbers)
  progress.json                    overwritten by the monitor: what its last look found
                                   (streamkeeper.watch.progress)
  lag.json                         overwritten by the monitor: how far the flow is behind its sources
                                   (streamkeeper.watch.behind)
  history/                         numbers by minute and by hour (streamkeeper.history.rows)
{state}/{pipeline}/ledger/<recovery>/       one immutable file an event (streamkeeper.flows.ledger)
{state}/{pipeline}/tables/<table>/
  recovery_lock/000007.json        one recovery at a time a table (streamkeeper.tables.recovery_lock)
  recovery_lock/000007.released.json  it was released
  write_lock/000042.json                 write lock: the highest holds it (streamkeeper.tables.write_lock)
  write_lock/000042.released.json            it was released
  vacuums/<id>.json                a VACUUM is under way, and removes this itself
                                   (streamkeeper.tables.running_vacuums)
  backups/<id>.json                entry of a backup (streamkeeper.tables.backups)
  asset_events.json                overwritten by the monitor: what events of the table's asset have told
                                   (streamkeeper.watch.asset_events)
{state}/tables/<table>.json        pipeline that a table belongs to (streamkeeper.tables.owners)
{state}/ledger/names/              names that flows and pipelines have had; a folder keeps the first. And
                                   the format of all these files (streamkeeper.manifest.names)
{state}/ledger/events/<pipeline>/  what happened to its flows (streamkeeper.history.events)
{state}/manifests/                 what the pipeline files declare (streamkeeper.manifest.manifest)
{state}/manifests/clock            overwritten by who must know the storage's own time
{state}/manifests/lineage          overwritten by the monitor: what OpenLineage was told
                                   (streamkeeper.health.lineage)
{state}/manifests/looked           overwritten by the monitor: when it last looked
                                   (streamkeeper.watch.progress)
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from streamkeeper.declare.model import OUR_FOLDERS
from streamkeeper.errors import StorageError
from streamkeeper.manifest import names
from streamkeeper.manifest.names import Names
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage, read_record, to_json
from streamkeeper.support.times import describe_age, now

T = TypeVar("T")
_AT_ONCE = 16
"""Flows that are looked at together where a look is slow."""
_LOOKED_AFTER, _SLOW = 0.05, 0.005
"""Seconds between two looks at how it goes, and seconds for a flow from which it is slow."""
CLOCK = "manifests/clock"
"""The file whose modification time, right after it was written, is the storage's time."""
LOOKED = "manifests/looked"
"""The file that says when the monitor last looked at all flows."""
LINEAGE = "manifests/lineage"
"""The file that says what OpenLineage was told."""

_NUMBERED = re.compile(r"([0-9]{6,})\.json")
_REPLAY = re.compile(r"([0-9]{6,})\.replay-([0-9]{6,})\.json")
_NAMESPACE = uuid.UUID("6f1f7d0e-5b0a-5d0c-9a53-7c1b7a4a2f10")


@dataclass(frozen=True)
class FlowHome:
    """The names of a flow's files in the state storage; the map above says what each is."""

    storage: Storage
    pipeline: str
    flow: str

    @property
    def full_name(self) -> str:
        """``pipeline.flow``."""
        return f"{self.pipeline}.{self.flow}"

    @cached_property
    def names(self) -> Names:
        """The names that flows and pipelines have had when this was asked first."""
        return names.read(self.storage)

    def beside(self, pipeline: str, flow: str) -> FlowHome:
        """Return the home of another flow, which knows the names that this one knows."""
        other = FlowHome(self.storage, pipeline, flow)
        other.__dict__["names"] = self.names
        return other

    @property
    def root(self) -> str:
        """The flow's folder: that of its first name."""
        return self.names.flow_folder(self.pipeline, self.flow)

    def query_id(self, number: int) -> str:
        """Return the id of the streaming query of a generation, which no rename changes."""
        return query_id(self.root.replace("/", "."), number)

    def generation(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.json"

    def start(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.start.json"

    def over(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.over.json"

    def adopted(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.adopted.json"

    def gone(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.gone.json"

    def last_run(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.last_run.json"

    def change(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.change.json"

    @property
    def trials(self) -> str:
        """The folder of checkpoint copies for trials of changed declarations.

        Each trial has a subfolder, so leftovers of a killed trial are never reused.
        """
        return f"{self.root}/trial"

    def done(self, number: int) -> str:
        return f"{self.root}/generations/{number:06d}.done.json"

    def checkpoint(self, number: int, epoch: int) -> str:
        """The checkpoint folder that the driver of a lease epoch makes for a generation."""
        return f"{self.root}/checkpoints/{number:06d}-{epoch:06d}"

    def replay(self, number: int, epoch: int) -> str:
        return f"{self.root}/generations/{number:06d}.replay-{epoch:06d}.json"

    def lease(self, epoch: int) -> str:
        return f"{self.root}/lease/{epoch:06d}.json"

    def left(self, epoch: int) -> str:
        return f"{self.root}/lease/{epoch:06d}.left.json"

    def heartbeat(self, epoch: int) -> str:
        return f"{self.root}/heartbeats/{epoch:06d}"

    def silent(self, epoch: int) -> str:
        return f"{self.root}/lease/{epoch:06d}.silent.json"

    def failed(self, epoch: int) -> str:
        return f"{self.root}/lease/{epoch:06d}.failed.json"

    @property
    def supervisor(self) -> str:
        return f"{self.root}/supervisor"

    @property
    def failures(self) -> str:
        return f"{self.root}/failures"

    def hold(self, owner: str) -> str:
        return f"{self.root}/holds/{owner}.json"

    def alert(self, name: str) -> str:
        return f"{self.root}/alerts/{name}"

    def history(self, name: str) -> str:
        return f"{self.root}/history/{name}"

    @property
    def recent(self) -> str:
        return f"{self.root}/recent.json"

    @property
    def progress(self) -> str:
        return f"{self.root}/progress.json"

    @property
    def lag(self) -> str:
        return f"{self.root}/lag.json"

    def generations(self) -> list[int]:
        """The numbers of all generations, lowest first."""
        return self._numbers("generations")

    def replays(self, number: int) -> list[int]:
        """The epochs of the drivers that cut a generation's history into steps, lowest first."""
        matches = (_REPLAY.fullmatch(name) for name in self.storage.names(f"{self.root}/generations"))
        return sorted(int(match[2]) for match in matches if match and int(match[1]) == number)

    def epochs(self) -> list[int]:
        """The numbers of all lease epochs, lowest first."""
        return self._numbers("lease")

    def owners(self) -> list[str]:
        """The owners of all holds."""
        return [
            name.removesuffix(".json")
            for name in self.storage.names(f"{self.root}/holds")
            if name.endswith(".json")
        ]

    def _numbers(self, folder: str) -> list[int]:
        matches = (_NUMBERED.fullmatch(name) for name in self.storage.names(f"{self.root}/{folder}"))
        return sorted(int(match[1]) for match in matches if match)


def of_each(storage: Storage, flows: Sequence[str], read: Callable[[FlowHome], T]) -> list[T]:
    """Return what a function reads of each of some flows, by full name, in their order.

    Names are read once for all. One thread looks; where that is slow, such as on an object store, others join
    it. From the start, they would wait for each other's turns of the interpreter most of the time.
    """
    template_home, values_by_index = FlowHome(storage, "", ""), dict[int, T]()
    remaining_flows = enumerate(flows)
    turn = threading.Lock()

    def read_on() -> None:
        while True:
            with turn:
                at, name = next(remaining_flows, (-1, ""))
            if at < 0:
                return
            values_by_index[at] = read(template_home.beside(*name.split(".", 1)))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        readers, last_count = [pool.submit(read_on)], 0
        while wait(readers, _LOOKED_AFTER).not_done:
            slow, last_count = len(values_by_index) - last_count < _LOOKED_AFTER / _SLOW, len(values_by_index)
            if slow and len(readers) < min(_AT_ONCE, len(flows)):
                readers += [pool.submit(read_on) for _ in range(_AT_ONCE - len(readers))]
        for reader in readers:
            reader.result()
    return [values_by_index[at] for at in range(len(flows))]


def tables_folder(storage: Storage, pipeline: str) -> str:
    """The folder of what is kept of a pipeline's tables, each in a folder of its name."""
    return f"{names.read(storage).folder(pipeline)}/tables"


def table_folder(storage: Storage, pipeline: str, table: str) -> str:
    """The folder of a table's lock and write lock. It lies with the owning pipeline, whichever pipeline asks.

    :param pipeline: who asks, and has it where it is nobody's yet.
    """
    owner = owner_folder(storage, table)
    return f"{owner}/tables/{table}" if owner else f"{tables_folder(storage, pipeline)}/{table}"


@dataclass(frozen=True)
class _Owner:
    """Content of a table's owner: the folder of a pipeline."""

    pipeline: str
    at: str


def owner_folder(storage: Storage, table: str) -> str | None:
    """Return the folder of the pipeline that owns a table; None if none does yet.

    :raises StorageError: the record is damaged.
    """
    way = "Restore it from a copy, or remove it if no flow of that pipeline is to write the table."
    owner = read_record(storage, table_owner(table), _Owner, "the owner of a table", way)
    return None if owner is None else owner.pipeline


def table_owner(table: str) -> str:
    """The file that says which pipeline, by its folder, a table belongs to."""
    return f"tables/{table}.json"


def asset_events(storage: Storage, pipeline: str, table: str) -> str:
    """The file that says what the events of a table's asset have told."""
    return f"{table_folder(storage, pipeline, table)}/asset_events.json"


def vacuums_folder(storage: Storage, pipeline: str, table: str) -> str:
    """The folder in which VACUUMs of a table note themselves while they are under way."""
    return f"{table_folder(storage, pipeline, table)}/vacuums"


@dataclass(frozen=True)
class LockFiles:
    """The names of the files of a table's lock: its ``write_lock`` or its ``recovery_lock``."""

    storage: Storage
    pipeline: str
    table: str
    kind: str = "write_lock"

    @cached_property
    def root(self) -> str:
        """The folder of the locks."""
        return f"{table_folder(self.storage, self.pipeline, self.table)}/{self.kind}"

    def lock(self, number: int) -> str:
        """The file of a lock: who holds it."""
        return f"{self.root}/{number:06d}.json"

    def released(self, number: int) -> str:
        """The file that says that a lock was released."""
        return f"{self.root}/{number:06d}.released.json"

    def numbers(self) -> list[int]:
        """The numbers of the locks that are there, lowest first; old ones are removed."""
        matches = (_NUMBERED.fullmatch(name) for name in self.storage.names(self.root))
        return sorted(int(match[1]) for match in matches if match)


def ledgers_folder(storage: Storage, pipeline: str) -> str:
    """The folder of the ledgers of a pipeline's recoveries, each in a folder of its id."""
    return f"{names.read(storage).folder(pipeline)}/ledger"


def query_id(full_name: str, generation: int) -> str:
    """Return the id of the streaming query of a flow's generation: a UUID, the same for the same pair.

    Spark takes it from the checkpoint's ``metadata`` file, and Delta's streaming sink writes it as the
    ``txn`` action's appId beside the batch id. So it can be fenced even where the checkpoint is beyond
    reading.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{full_name}/{generation}"))


def kept_pipelines(storage: Storage) -> list[str]:
    """Return the present names of all pipelines that something is kept of, declared or not."""
    name_history = names.read(storage)
    return sorted(name_history.pipeline_in(folder) for folder in storage.names() if folder not in OUR_FOLDERS)


def kept_flows(storage: Storage, pipeline: str) -> Iterator[FlowHome]:
    """Return all flows of a pipeline that something is kept of, by their present names, declared or not."""
    name_history = names.read(storage)
    folder = name_history.folder(pipeline)
    flow_folders = (name for name in storage.names(folder) if name not in OUR_FOLDERS)
    return (FlowHome(storage, pipeline, name_history.flow_in(f"{folder}/{name}")) for name in flow_folders)


def open_home(settings: Settings, flow: str) -> FlowHome:
    """Return the names of a flow's files. ``flow`` is ``pipeline.flow``."""
    pipeline, _, name = flow.partition(".")
    return FlowHome(open_storage(settings.state), pipeline, name)


CLOCKS_APART = 3600.0
"""Seconds by which a host's clock may be ahead of the storage's, where files are removed by their age."""


def clock_ahead(storage: Storage) -> str | None:
    """Return why no file may be removed by its age on this host: its clock is ahead of the storage's by more
    than :data:`CLOCKS_APART`, and files would look that much older. None if they may.

    :raises StorageError: the storage cannot be written.
    """
    seconds = time.time() - storage_now(storage)
    if seconds <= CLOCKS_APART:
        return None
    return f"this host's clock is {describe_age(seconds)} ahead of that of {storage.path()}; correct it"


def storage_now(storage: Storage) -> float:
    """Return the time by the storage's own clock, in seconds since the epoch: that of a file written now.

    :raises StorageError: the written file is missing.
    """
    storage.overwrite(CLOCK, to_json({"at": now()}))
    written = storage.modified(CLOCK)
    if written is None:
        raise StorageError(
            f"{storage.path(CLOCK)} was written and is not there. Another process removes files from the"
            " state folder: find it and stop it."
        )
    return written
