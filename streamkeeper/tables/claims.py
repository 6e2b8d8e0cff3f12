"""Claims of pipelines that are refused whatever their files declare: former names of others, tables of
others, and mere renames.

A refused pipeline keeps its last declaration, with the error beside it; without one it has no flows. So the
owner of a table keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from streamkeeper.declare import checks
from streamkeeper.declare.model import Pipeline
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import Manifest, of_pipeline
from streamkeeper.manifest.names import Names
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import owners


def settle(settings: Settings, read: Manifest, before: Manifest | None, files: Collection[str]) -> Manifest:
    """Return the manifest of the imported pipeline files without refused claims.

    :param before: the last manifest.
    :param files: the names of the existing pipeline files, without suffix.
    """
    storage = open_storage(settings.state)
    around = _Around(settings, storage, names.read(storage), read, before or Manifest("", (), {}, {}), files)
    checks: tuple[Callable[[Pipeline], str | None], ...] = (
        around.taken_name,
        around.renamed_flow,
        around.renamed_file,
        around.taken_table,
        around.nested_table,
    )
    errors, last_declared = dict(read.errors), dict[str, Pipeline]()
    refused: set[str] = set()
    for pipeline in read.pipelines:
        if pipeline.name in read.errors:
            continue  # it has its last declaration
        wrong = next((error for check in checks if (error := check(pipeline)) is not None), None)
        if wrong is not None:
            errors[pipeline.name] = wrong
            refused.add(pipeline.name)
    for name, error in around.gone.items():
        errors.setdefault(name, error)
    stay = [pipeline for pipeline in read.pipelines if pipeline.name not in refused]
    tables = {table.name for pipeline in stay for table in pipeline.tables}
    marked = (*stay, *read.aside)
    for last in around.before.pipelines:
        if (last.name in refused or last.name in around.gone) and tables.isdisjoint(
            table.name for table in last.tables
        ):
            last_declared[last.name] = last
            tables |= {table.name for table in last.tables}
    return replace(
        read,
        pipelines=tuple(sorted((*stay, *last_declared.values()), key=lambda pipeline: pipeline.name)),
        errors=errors,
        fingerprints=_marks(read.fingerprints, around.before.fingerprints, marked, last_declared),
        likenesses=_marks(read.likenesses, around.before.likenesses, marked, last_declared),
    )


@dataclass
class _Around:
    """Checks of one import, with their input.

    ``gone`` maps a pipeline whose file is gone, while another file declares the same, to its error: it keeps
    its last declaration.
    """

    settings: Settings
    storage: Storage
    name_history: Names
    read: Manifest
    before: Manifest
    files: Collection[str]

    def __post_init__(self) -> None:
        self.gone: dict[str, str] = {}

    def taken_name(self, pipeline: Pipeline) -> str | None:
        """Return the error of a pipeline with a former name of another, or with such a flow; None if none."""
        present = self.name_history.pipeline_in(self.name_history.folder(pipeline.name))
        if present != pipeline.name:
            return (
                f"{pipeline.file}, line 1: the pipeline that was named {pipeline.name} is named {present}"
                f" now. Name the file {present}.py, or give it a name that no pipeline ever had; to undo"
                f" the rename, run `streamkeeper rename {present} {pipeline.name}`."
            )
        for flow in pipeline.flows:
            own, now = (
                f"{pipeline.name}.{flow.name}",
                self.name_history.present(f"{pipeline.name}.{flow.name}"),
            )
            if now != own:
                return (
                    f"{flow.location}: the flow that was named {flow.name} is named {now.partition('.')[2]}"
                    " now. Declare it by that name, or give this one a name that no flow ever had; to undo"
                    f" the rename, run `streamkeeper rename {now} {own}`."
                )
        return None

    def renamed_flow(self, pipeline: Pipeline) -> str | None:
        """Return the error of a pipeline with a flow that was only renamed; None if there is none."""
        last = self.before.pipeline(pipeline.name)
        gone = [flow.name for flow in last.flows if pipeline.flow(flow.name) is None] if last else []
        for flow in (flow for flow in pipeline.flows if last is not None and last.flow(flow.name) is None):
            new = f"{pipeline.name}.{flow.name}"
            alike = self.read.likenesses.get(new)
            if self._home(pipeline.name, flow.name).generations():
                continue
            for old in (
                f"{pipeline.name}.{name}" for name in gone if self._home(pipeline.name, name).generations()
            ):
                if alike is not None and self.before.likenesses.get(old) == alike:
                    return (
                        f"{flow.location}: the flow {flow.name} is {old} under another name, and would read"
                        f" everything again. Run `streamkeeper rename {old} {new}`, and it continues from"
                        " its position. If everything is to be read again, rename it first and then"
                        " trigger a full refresh."
                    )
        return None

    def renamed_file(self, pipeline: Pipeline) -> str | None:
        """Return the error of a file that was only renamed; None if it was not.

        It declares the same as a pipeline whose own file is gone. That pipeline keeps its last declaration.
        """
        if self.before.pipeline(pipeline.name) is not None or owners.has_run(self.storage, pipeline.name):
            return None
        for last in self.before.pipelines:
            same = _own(self.before.fingerprints, last.name) == _own(self.read.fingerprints, pipeline.name)
            if last.name in self.files or not (
                same or any(pipeline.table(table.name) for table in last.tables)
            ):
                continue
            if not owners.has_run(self.storage, last.name):
                continue
            todo = (
                f"Run `streamkeeper rename {last.name} {pipeline.name}`: all its flows continue from their"
                " positions."
            )
            self.gone[last.name] = (
                f"{last.file} is gone, and {pipeline.file} declares"
                f" {'the same' if same else 'a table of it'}. {todo} Until then its flows keep their last"
                " declaration and are not started again. To remove the flows, remove both files."
            )
            return (
                f"{pipeline.file}, line 1: the file declares {'what' if same else 'a table that'}"
                f" {last.file} declared, which is gone, and would read everything into its tables again."
                f" {todo} If it is another pipeline, give its tables other names."
            )
        return None

    def taken_table(self, pipeline: Pipeline) -> str | None:
        """Return the error of a pipeline with a table that another pipeline keeps; None if there is none."""
        last = self.before.pipeline(pipeline.name)
        for table in pipeline.tables:
            claimants = [other.name for other in self.read.pipelines if other.table(table.name) is not None]
            other: str | None = self._keeper(table.name, claimants)
            if other == pipeline.name:
                had = last is not None and last.table(table.name) is not None
                other = None if had else owners.foreign(self.settings, pipeline.name, table.name)
            if other is not None:
                declared = self.read.pipeline(other)
                if other not in self.files and self.before.pipeline(other) is not None:
                    self.gone[other] = (
                        f"{other}.py is gone, and {pipeline.file} declares its table {table.name}. Put"
                        f" {other}.py back, or take the table out of {pipeline.file}. Until then its flows"
                        " keep their last declaration and are not started again."
                    )
                declared_table = declared.table(table.name) if declared else None
                location = f" ({declared_table.location})" if declared_table else ""
                return owners.refusal(
                    f"{table.location}: the table {table.name}", pipeline.name, other, location
                )
        return None

    def nested_table(self, pipeline: Pipeline) -> str | None:
        """Return the error of a pipeline of whose tables one lies in the folder of another pipeline's, or
        around it; None if there is none. The one that has it longer keeps it.
        """
        for table in pipeline.tables:
            for other in self.read.pipelines:
                for theirs in other.tables if other.name != pipeline.name else ():
                    if checks.are_nested(table.name, theirs.name) and self._since(
                        other.name, theirs.name
                    ) < self._since(pipeline.name, table.name):
                        return checks.nested(table.location, table.name, theirs.name, theirs.location)
        return None

    def _since(self, pipeline: str, table: str) -> tuple[bool, str, str]:
        """Return by what pipelines are ordered of which each has a table: who had it before comes first."""
        had = self.before.pipeline(pipeline)
        new = had is None or had.table(table) is None
        return new, owners.began(self.storage, pipeline) or "never", pipeline

    def _keeper(self, table: str, claimants: list[str]) -> str:
        """Return which of the pipelines that declare a table keeps it.

        In this order: the owner, the last one to declare it, the one whose rows it holds, the one that began
        first. If none ever ran, the first by name.
        """
        if len(claimants) == 1:
            return claimants[0]
        claimants = sorted(claimants, key=lambda name: (owners.began(self.storage, name) or "never", name))
        last = [
            name
            for name in claimants
            if (had := self.before.pipeline(name)) is not None and had.table(table) is not None
        ]
        wrote = (owners.foreign(self.settings, name, table) for name in claimants)
        for name in (owners.owner(self.storage, table), *last, *wrote):
            if name in claimants:
                return name
        return claimants[0]

    def _home(self, pipeline: str, flow: str) -> FlowHome:
        return FlowHome(self.storage, pipeline, flow)


def _own(marks: dict[str, str], pipeline: str) -> dict[str, str]:
    """Return the marks of a pipeline's flows by their own names."""
    return {name.partition(".")[2]: mark for name, mark in of_pipeline(marks, pipeline).items()}


def _marks(
    read: dict[str, str], before: dict[str, str], stay: Collection[Pipeline], last_declared: Collection[str]
) -> dict[str, str]:
    now = {name: mark for pipeline in stay for name, mark in of_pipeline(read, pipeline.name).items()}
    return now | {name: mark for last in last_declared for name, mark in of_pipeline(before, last).items()}
