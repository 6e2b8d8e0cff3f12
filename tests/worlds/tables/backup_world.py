"""Backups and restores to try things on: recoveries carried out in this process, step by step, killed where a
test wants it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.flows.ledger import Event, Ledger
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from tests.killing import Killed


@dataclass
class Recoverer:
    """Plans and carries out recoveries of one pipeline."""

    spark: SparkSession
    settings: Settings
    pipeline: str

    def plan(self, recovery: str, name: str, **values: Any) -> Plan:
        """Plan a recovery of a kind, propose and approve it."""
        of, manifest = kind(recovery), read_manifest(self.settings)
        made = engine.plan(self.settings, of, of.parse(values, manifest, "ada"), name)
        engine.propose(self.settings, made)
        engine.approve(self.settings, self.pipeline, name, "ada")
        return made

    def step(self, name: str, step: str) -> dict[str, Any]:
        """Carry out one step."""
        return engine.carry_out(self.settings, self.pipeline, name, step, self._in_spark)

    def run(self, recovery: str, name: str, killed: bool = False, **values: Any) -> dict[str, Any]:
        """Plan a recovery and carry out its steps; give the evidence of all. The wait for progress is left
        out.

        :param killed: every step is killed at its end and run again.
        """
        steps = [step for step in self.plan(recovery, name, **values).steps if step != "verify_progress"]
        return {
            step: self.step_killed_at_its_end(name, step) if killed else self.step(name, step)
            for step in steps
        }

    def backup(self, name: str, table: str, **values: Any) -> dict[str, Any]:
        """Back a table up, and give the entry."""
        entry: dict[str, Any] = self.run("backup_table", name, table=table, **values)["enter"]["backup"]
        return entry

    def step_killed_at_its_end(self, name: str, step: str) -> dict[str, Any]:
        """Carry out a step whose process is killed when all is done and nothing of that is written down; then
        carry it out again.
        """
        real = Ledger.record

        def record(book: Ledger, event: str, evidence: dict[str, Any]) -> Event:
            if event == f"{step}.done":
                raise Killed
            return real(book, event, evidence)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Ledger, "record", record)
            with pytest.raises(Killed):
                self.step(name, step)
        return self.step(name, step)

    def _in_spark(self, act: str, work: Work) -> dict[str, Any]:
        module, _, name = act.partition(":")
        function: Callable[[SparkSession, Work], dict[str, Any]] = getattr(
            importlib.import_module(module), name
        )
        return function(self.spark, work)


def copy_of(entry: Mapping[str, Any], what: str = "target") -> dict[str, Any]:
    """Give what an entry says of one of its tables."""
    [found] = [table for table in entry["tables"] if table["what"] == what]
    return dict(found)
