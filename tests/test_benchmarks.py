"""How benchmarks are started, the one table of them all, and the simulated drivers of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import ratios
from tests.worlds.flows import many_flows
from tests.worlds.small_world import World
from tools.waiting import wait_until

SCRIPT = """
import sys
sys.path.insert(0, {project!r})
from tests.benchmarks.ratios import print_ratio, rounds
print("rounds:", rounds())
print_ratio({what!r}, [3.0] * rounds(), [2.0] * rounds(), "s", "≤1.50")
{last}
"""


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java and the jars are there; `make test-fast` needs neither."""
    for name in ("find_java", "jar_paths"):
        monkeypatch.setattr(ratios, name, lambda: None)
    monkeypatch.setenv("PATH", os.environ["PATH"])


def write_scripts(folder: Path, **last: str) -> None:
    project = str(Path(__file__).parent.parent)
    for name, line in last.items():
        (folder / f"bench_{name}.py").write_text(
            SCRIPT.format(project=project, what=f"{name} beside bare", last=line)
        )


@pytest.mark.usefixtures("ready")
def test_a_benchmark_started_by_its_python_alone_finds_what_lies_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ratios.enter_environment()
    for name in ratios.NEEDED:
        assert shutil.which(name) == str(Path(sys.executable).with_name(name))


def test_what_lacks_is_said_at_once_and_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(
        SystemExit,
        match=r"(?s)has no spark-submit.*has no airflow.*JAVA_HOME is.*make setup.*make bench NAME=",
    ):
        ratios.enter_environment()


@pytest.mark.usefixtures("ready")
def test_all_ratios_are_in_one_table_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_scripts(tmp_path, one="", broken="sys.exit(1)", two="")
    monkeypatch.setattr(benchmarks, "HERE", tmp_path)
    monkeypatch.setenv("ROUNDS", "3")
    assert benchmarks.main([]) == 1, "one of them is broken"
    said, errors = capfd.readouterr()
    assert said.count("rounds: 3") == 3
    table = said[said.rindex(ratios.HEADER) :].splitlines()
    assert [line.split("  ")[0] or line.strip().split("  ")[0] for line in table[1:]] == [
        *("broken", "broken beside bare", "one", "one beside bare", "two", "two beside bare")
    ]
    assert table[2].endswith("3.00       2.00 s         1.50  (1.50–1.50)  ≤1.50")
    assert "error: failed: broken" in errors


@pytest.mark.usefixtures("ready")
def test_one_benchmark_is_run_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_scripts(tmp_path, one="", two="")
    monkeypatch.setattr(benchmarks, "HERE", tmp_path)
    assert benchmarks.main(["two"]) == 0
    assert "one beside bare" not in capfd.readouterr().out
    assert benchmarks.main(["three"]) == 2
    assert "there is no benchmark three; there are one, two" in capfd.readouterr().err


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    """Five flows, each with a simulated driver, as a task would have started it."""
    monkeypatch.syspath_prepend(str(PROJECT / "spark_jobs"))
    from tests.benchmarks.thousand.company import Company

    made = World(tmp_path, more={"STREAMKEEPER_HEARTBEAT_INTERVAL": "0.3"})
    flows = tuple(many_flows.declare(made, 5).flows())
    for flow in flows:
        many_flows.begin(many_flows.home_of(made.settings, flow), flow)
    with Company(tmp_path / "company", made.settings, {}) as company:
        bed = Simulated(made, flows, company)
        for flow in flows:
            bed.submit(flow)
        wait_until(lambda: bed.count("began") == 5 or None, 60, "all began", 0.05)
        yield bed


@dataclass
class Simulated:
    """What stands for an Airflow here: it starts drivers, and nothing else."""

    world: World
    flows: tuple[Flow, ...]
    company: Any

    def submit(self, flow: Flow) -> subprocess.Popen[bytes]:
        program = self.company.programs / "spark3-submit"
        variables = {**os.environ, submit.LOG_VARIABLE: str(self.world.root / f"{flow.name}.log")}
        return subprocess.Popen([program, "--conf", "a=b", "job.py", "--flow", flow.full_name], env=variables)

    def count(self, event: str) -> int:
        return sum(entry.event == event for entry in self.company.entries())

    def violations(self, *parked: Flow) -> list[str]:
        from tests.benchmarks.thousand.stages import violations
        from tests.benchmarks.thousand.world import Thousand

        names = {flow.full_name for flow in parked}
        none: Any = None
        return violations(Thousand(self.world.settings, self.flows, none, self.company, none, names))


def test_simulated_drivers_have_real_leases_and_end_by_holds_damage_and_kills(simulated: Simulated) -> None:
    from tests.benchmarks.thousand.company import kill
    from tests.benchmarks.thousand.stages import damage_checkpoint

    held, damaged, killed, *_ = simulated.flows
    homes = [many_flows.home_of(simulated.world.settings, flow) for flow in (held, damaged, killed)]
    assert simulated.violations() == []
    holds.put(homes[0], holds.person("ada"), "enough", "ada")
    damage_checkpoint(homes[1])
    kill(simulated.company.living()[killed.full_name][0])
    wait_until(lambda: simulated.count("ended") == 2 or None, 60, "two have ended", 0.05)
    wait_until(lambda: simulated.count("killed") or None, 60, "one is seen as killed", 0.05)
    park = holds.parked(homes[1])
    assert park is not None
    assert "its checkpoint cannot be read" in park.reason
    wrong = [one.partition(" ")[0] for one in simulated.violations(damaged)]
    assert wrong == [held.full_name, killed.full_name], "neither has a driver, and the bench fails"
    simulated.submit(killed)
    wait_until(lambda: simulated.count("began") == 6 or None, 60, "the next began", 0.05)
    lease = leases.current(homes[2])
    assert lease is not None
    assert (lease.epoch, lease.took_over) == (2, leases.DEAD)


def test_a_second_simulated_driver_of_a_flow_is_turned_away_as_a_real_one_is(simulated: Simulated) -> None:
    assert simulated.submit(simulated.flows[0]).wait(60) == Outcome.LEASE_HELD
    assert (simulated.count("second"), simulated.violations()) == (0, [])
