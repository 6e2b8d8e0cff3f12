"""The task that keeps a flow running.

It submits the flow's driver or attaches to a living one, follows it, and reports how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamkeeper.clusters import cluster_drivers
from streamkeeper.drivers import failures, submit
from streamkeeper.errors import SettingsError
from streamkeeper.exit_codes import OUT_OF_MEMORY, Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.health.driver_log import ClusterLog, LogFile, LogTail
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import DEFERRED, Settings
from streamkeeper.supervise.attached import Attached, AttachedToSharedDriver, Ending, find, of_parts
from streamkeeper.supervise.heart import Heart
from streamkeeper.supervise.loop import BACKLOG, Reason
from streamkeeper.support.times import now
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState, to_run
from streamkeeper.watch import crash_loops
from streamkeeper.watch.alerts import AlertKind
from streamkeeper.watch.crash_loops import Failures
from streamkeeper_airflow.flow import deferral
from streamkeeper_airflow.flow import submit as submitting
from streamkeeper_airflow.flow.airflow_settings import (
    check_airflow,
    check_triggerer_lives,
    check_worker_lasts,
)
from streamkeeper_airflow.flow.deferral import DriverTrigger
from streamkeeper_airflow.flow.drivers import Driver, Found, InCluster, Submitted
from streamkeeper_airflow.flow.gate import HoldTrigger, all_held
from streamkeeper_airflow.flow.retries import (
    LONGEST_DELAY,
    LOST_DELAY,
    UNLIMITED,
    AfterHealth,
    DriverFailed,
    WrongSettings,
    delay,
    failing_streak,
)
from streamkeeper_airflow.flow.shared_driver import flows_at_fault, sharing_flows
from streamkeeper_airflow.flow.successor import Successor
from streamkeeper_airflow.operate.notify import masked, page, record_alert
from streamkeeper_airflow.operate.park_message import describe_park, describe_retried
from streamkeeper_airflow.operate.run_note import set_run_note

ATTACH_ATTEMPTS = 3


class FlowOperator(BaseOperator):
    """Runs a flow's driver for as long as the driver lives.

    * It checks the holds again at each try, since a retry skips the gate. A held flow ends the task as
      *skipped*: nothing failed, and the next run of the ``@continuous`` DAG waits at its gate without a slot.
      A failed task would raise an alarm, a waiting one would keep its slot.
    * It attaches to a living driver; it never starts a second one.
    * A parked flow ends the run as *failed*, once: red and visible, and the next run's gate waits.
    * Any other end is retried for ever (see :mod:`streamkeeper_airflow.flow.retries`). After a driver that
      had worked, this very try starts the next one, without waiting for Airflow.
    * While it follows a driver it sends a heartbeat; a driver without a supervisor stops by itself after some
      time.
    * With ``supervision=deferred`` it does all that until the driver works. Then it is deferred, and
      :class:`streamkeeper_airflow.flow.deferral.DriverTrigger` follows the driver: it goes on at the
      driver's end, or to have a changed declaration tried.

    Flows that share a driver have one such task: it is held if all of them are, and it fails with the flows
    that ended the driver.

    A flow that runs once has no next run that could wait at the gate. So its task itself waits, without a
    slot, while the flow is held, and starts drivers until the flow is done. For a flow that is already done
    it logs that, and succeeds.

    :param flow: ``pipeline.flow``; or
    :param flows: all flows of a pipeline that share a driver; read again from the manifest at each try.
    :param once: the flow runs once, and has a task of its own.
    :param connection: Airflow's connection to Spark's master; empty for that of the settings.
    """

    def __init__(
        self,
        *,
        flow: str | None = None,
        flows: Sequence[str] = (),
        once: bool = False,
        connection: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs = {
            "retries": UNLIMITED,
            "retry_delay": LOST_DELAY,
            "max_retry_delay": LONGEST_DELAY,
            "retry_policy": AfterHealth(),
            **kwargs,
        }
        super().__init__(**kwargs)
        self.flow = flow or ", ".join(flows)
        self.flows, self.shared, self.once = [flow] if flow else list(flows), not flow, once
        self.connection = connection
        self._driver: Driver | None = None
        self._before: dict[str, int] = {}
        self._reported = ""

    def execute(self, context: Context) -> None:
        """Supervise the flow's driver until it ends.

        :raises AirflowSkipException: the flow is held.
        :raises AirflowFailException: the flow is parked.
        :raises DriverFailed: another try may succeed.
        :raises WrongSettings: no driver can be started with the present settings.
        """
        # They are for the graph of assets. Events come from the monitor, which knows what was committed.
        self.outlets = []
        while not self._is_done() and self._supervise(context):
            self._say_restarted()

    def freed(self, context: Context, event: dict[str, Any]) -> None:
        """Continue after a hold of a flow that runs once."""
        self.log.info("Released: %s.", event["flow"])
        self.execute(context)

    def woken(
        self,
        context: Context,
        event: dict[str, Any],
        flows: Sequence[str],
        epochs: Mapping[str, int],
        reported: str,
    ) -> None:
        """Go on where the triggerer leaves the watch of a driver: judge its end, or have a change tried.

        :param event: ``reason``, as :class:`streamkeeper.supervise.loop.Reason` says it.
        :param flows: the flows of the task when it was deferred, and ``epochs`` and ``reported`` what the
            trigger was given (:class:`streamkeeper.supervise.loop.Handover`).
        """
        self.flows, self.flow, self._reported = list(flows), ", ".join(flows), reported
        if self._supervise(context, epochs, shows_end=event["reason"] == Reason.END):
            self._say_restarted()
            self.execute(context)

    def on_kill(self) -> None:
        """Leave the driver alone, whether a scheduler restart, a worker shutdown or a person ends this task.

        The next try attaches to it. To stop a flow, hold it; and a driver without a supervisor stops by
        itself after some time.
        """
        if self._driver is not None:
            self.log.warning(
                "This task is being stopped. The driver of %s keeps running, and the next try attaches to"
                " it.",
                self.flow,
            )

    def _is_done(self) -> bool:
        """Return whether a flow that runs once has read all available data."""
        number = generations.finished(open_home(_settings(), self.flow)) if self.once else None
        if number is None:
            return False
        self.log.info(
            "%s is done, in generation %s: it runs once and has read all its input. A reset runs it again.",
            self.flow,
            number,
        )
        return True

    def _say_restarted(self) -> None:
        self.log.info("%s had committed batches, so it is restarted at once.", self.flow)

    def _supervise(
        self, context: Context, epochs: Mapping[str, int] | None = None, *, shows_end: bool = False
    ) -> bool:
        """Supervise one driver until it ends; return whether the next one is started at once, in this try.

        :param epochs: the leases of the driver that the triggerer watched, by its flows' full names.
        :param shows_end: whether that driver's last lines are shown again.
        """
        settings = _settings()
        if epochs is None:
            self._find_sharers(settings)
        homes, by = [open_home(settings, flow) for flow in self.flows], name_of(context)
        # The driver that runs may have been started before its pipeline named a connection.
        for connection in {settings.connection, self.connection or settings.connection}:
            submitting.trust_pages(connection)
        heart = Heart(homes, settings.supervisor_timeout, by, self.log.warning)
        heart.go_on()
        known = deferral.take_up(settings, homes, epochs or {}, shared=self.shared)
        for _ in range(ATTACH_ATTEMPTS):
            if known is None:
                self._skip_if_held(settings)
            self._before = _newest_epochs(homes)
            heart.beat()
            attached = known or self._attach(settings, homes, heart)
            self._driver = attached or self._submit(settings, homes, context)
            ending = self._follow_all(settings, homes, heart, context)
            if known is not None and shows_end:
                for location, lines in deferral.ends_of_outputs(known):
                    self.log.info("The last lines of %s were:\n%s", location, lines)
            if ending.code not in (Outcome.LEASE_HELD, Outcome.LEASE_LOST):
                break
            self.log.info("Another driver has the lease of %s; attaching to it.", self.flow)
            known = None
        epochs = {home.full_name: epoch for home in homes if (epoch := self._epoch(home, ending))}
        return self._conclude(*flows_at_fault(homes, ending.code, epochs), ending=ending, context=context)

    def _epoch(self, home: FlowHome, ending: Ending) -> int | None:
        """Return the lease epoch of the driver that was followed last; None if it never had the flow's lease.

        The newest epoch may be another driver's: of a try that watched this one, too, or that came first.
        """
        if isinstance(self._driver, Attached | AttachedToSharedDriver):
            return self._driver.epochs.get(home.full_name)
        newest, came_late = _newest_epoch(home), ending.code in (Outcome.LEASE_HELD, Outcome.LEASE_LOST)
        return newest if newest > self._before.get(home.full_name, 0) and not came_late else None

    def _follow_all(
        self, settings: Settings, homes: Sequence[FlowHome], heart: Heart, context: Context
    ) -> Ending:
        """Follow the driver, and those that take over with a changed declaration, to the last one's end."""
        assert self._driver is not None, "it was submitted, or found"
        successor = Successor(
            settings,
            homes[0],
            lambda: self._submit(settings, homes, context, take_over=True),
            lambda current_change: self._tell_change(current_change, context),
            reported=self._reported,
        )
        ending = self._follow(settings, self._driver, heart, successor, context)
        while ending.code == Outcome.STOPPED and (ready := successor.take()) is not None:
            self.log.info("The driver of %s hands over to the one that tried its change.", self.flow)
            self._driver = ready
            ending = self._follow(settings, ready, heart, successor, context)
        successor.end()
        self._reported = successor.reported
        return ending

    @property
    def _tries_changes(self) -> bool:
        return not self.shared and not self.once

    def _tell_change(self, current_change: Change, context: Context) -> None:
        """Tell of a change that is kept out: in the log, on the run, and by an alert."""
        run, text = context["dag_run"], current_change.in_words()
        self.log.warning("%s", text)
        kind = (
            AlertKind.CHANGE_REFUSED
            if current_change.state is ChangeState.REFUSED
            else AlertKind.CHANGE_WAITS
        )
        if record_alert(
            _settings(), kind, self.flow, text, current_change.fingerprint, link=page(run.dag_id)
        ):
            set_run_note(run.dag_id, run.run_id, text)

    def _find_sharers(self, settings: Settings) -> None:
        """Read from the manifest which flows share the driver now.

        The DAG file that made this task may be older than the last declaration.
        """
        if not self.shared:
            return
        self.flows = sharing_flows(read_manifest(settings), self.flows[0])
        if not self.flows:
            raise AirflowSkipException(
                f"{self.flow}: these flows no longer share a driver; each has its own DAG."
            )
        self.flow = ", ".join(self.flows)

    def _skip_if_held(self, settings: Settings) -> None:
        description = all_held(settings, self.flows)
        if description and self.once:
            self.log.info(
                "%s is held. This task waits, deferred, until the hold is released.\n%s",
                self.flow,
                description,
            )
            self.defer(trigger=HoldTrigger(self.flows[0]), method_name="freed")
        if description:
            raise AirflowSkipException(
                f"{self.flow} is held and is not started. The next run waits at the gate.\n{description}"
            )

    def _attach(self, settings: Settings, homes: Sequence[FlowHome], heart: Heart) -> Found | None:
        parts = find(homes, settings.lease_term, heart.beat)
        if not parts:
            return None
        self.log.info("%s has a living driver (%s): attaching to it.", self.flow, parts[0])
        self._warn_of_settings(settings)
        return of_parts(parts, settings.lease_term, shared=self.shared)

    def _warn_of_settings(self, settings: Settings) -> None:
        """Warn about settings that do not fit, but keep watching: a refusal would end the running driver."""
        try:
            check_airflow(settings)
        except WrongSettings as error:
            self.log.warning("The next driver will be refused: %s", error)

    def _refuse_settings(self, settings: Settings, *checks: Callable[[Settings], None]) -> None:
        try:
            for check in checks:
                check(settings)
        except WrongSettings as error:
            self._tell_wrong(settings, error)
            raise

    def _tell_wrong(self, settings: Settings, error: Exception) -> None:
        """Alert what is wrong with the settings, once for each thing that is: so its text is the occasion."""
        record_alert(settings, AlertKind.SETTINGS, self.flows[0], str(error), masked(str(error)))

    def _submit(
        self, settings: Settings, homes: Sequence[FlowHome], context: Context, take_over: bool = False
    ) -> Submitted | InCluster:
        self._refuse_settings(settings, check_airflow, check_triggerer_lives)
        manifest = read_manifest(settings)
        flows = [to_run(open_home(settings, flow), manifest.find(flow)) for flow in self.flows]
        if flows[0].pipeline.shared_driver and not self.shared:
            raise AirflowSkipException(
                f"{self.flow} now shares a driver with the other flows of its pipeline; the DAG"
                f" {flows[0].dag_id} runs it."
            )
        before, log = _newest_epochs(homes), self._log_file(context, submit.application_name(flows))
        try:
            connection = self.connection or settings.connection
            command, environment = submitting.prepare(settings, flows, connection, log, take_over)
        except (AirflowFailException, SettingsError) as error:
            # Airflow also says that there is no connection where its API server failed to tell.
            self._tell_wrong(settings, error)
            raise WrongSettings(str(error)) from error
        page = environment.get(cluster_drivers.PAGE_VARIABLE)
        if page is None:
            self._refuse_settings(settings, check_worker_lasts)
        # Beside a trial the driver runs that this try may have submitted, too.
        find_newer = partial(self._find_newer, homes, settings.lease_term, before)
        driver = Submitted(command, environment, log, find_newer)
        if page is not None:
            self.log.info("Submitted the driver of %s to the cluster of %s.", self.flow, page)
            return InCluster(driver, page, find_newer, self.log.info)
        self.log.info("Started the driver of %s: process group %s, output in %s.", self.flow, driver.pid, log)
        return driver

    def _find_newer(self, homes: Sequence[FlowHome], term: float, before: dict[str, int]) -> Found | None:
        """Find a driver that this try submitted, by a lease that was not there before."""
        newer = [home for home in homes if _newest_epoch(home) > before[home.full_name]]
        parts = [Attached(home, lease, term) for home in newer if (lease := leases.current(home))]
        return of_parts(parts, term, shared=self.shared) if parts else None

    def _log_file(self, context: Context, application: str) -> Path:
        ti = context["ti"]
        stamp = re.sub(r"[^0-9T]", "", now().split("+")[0])
        folder = Path(conf.get("logging", "base_log_folder")) / "drivers" / application
        name = f"{stamp}-try{ti.try_number}"
        # A task that was deferred meanwhile does not remember how many drivers its try has started.
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(file for name in names if not (file := folder / f"{name}.log").exists())

    def _follow(
        self, settings: Settings, driver: Driver, heart: Heart, successor: Successor, context: Context
    ) -> Ending:
        """Follow a driver to its end, or until the triggerer can do that."""
        backlog = None if isinstance(driver, Submitted | InCluster) else BACKLOG

        def tail(output: LogFile | ClusterLog) -> LogTail:
            start = heart.shown.get(output.location)
            return LogTail(output, self.log.info, backlog=backlog, start=start)

        tails = [tail(LogFile(driver.log))] if driver.log else []
        elsewhere: LogTail | None = None
        while True:
            heart.beat()
            if self._tries_changes:
                successor.look()
            ending = driver.wait()
            if elsewhere is None and driver.cluster is not None:
                elsewhere = tail(ClusterLog(driver.cluster))
                tails.append(elsewhere)
            for each in tails:
                each.pump()
                heart.shown[each.location] = each.position
            if ending is not None:
                return ending
            if settings.supervision == DEFERRED and not successor.is_busy:
                working = deferral.ready(settings, self.flows, driver)
                if working is not None:
                    heart.beat(at_once=True)
                    by, reported = name_of(context), successor.reported
                    trigger = DriverTrigger(working.epochs, by, self._tries_changes, reported)
                    deferral.hand_over(self, self.flows, trigger)

    def _conclude(self, *homes: FlowHome, ending: Ending, context: Context) -> bool:
        """Report how the driver ended; return whether the next is to be started at once.

        A new try would cost as much again as a driver needs to get to work, and wait for a scheduler that may
        be away.

        :param homes: of the flows that ended it.
        """
        match ending.code:
            case Outcome.STOPPED | Outcome.DONE:
                self.log.info("The driver of %s stopped normally (%s).", self.flow, ending.description)
                return self.once
            case Outcome.CHANGE_REFUSED:
                self._tell_refused(homes[0], context)
                return True
            case Outcome.HELD if self.once:
                return True
            case Outcome.HELD:
                raise AirflowSkipException(
                    f"{self.flow} was held before its driver began; the next run waits at the gate."
                )
            case Outcome.PARKED:
                run, notes = context["dag_run"], [self._say_parked(home) for home in homes]
                set_run_note(run.dag_id, run.run_id, "\n\n".join(notes))
                parked = ", ".join(home.full_name for home in homes)
                raise AirflowFailException(
                    f"{parked} is parked. The cause, and the recovery for it, are above."
                )
            case _:
                self._skip_if_held(Settings.from_environment())
                run, each = context["dag_run"], [self._failed(home, ending) for home in homes]
                failed = max(each, key=lambda failed: (failed.looping, failed.streak or 0))
                set_run_note(run.dag_id, run.run_id, "\n\n".join(map(str, each)))
                if delay(failed.code, failed.streak, failed.looping):
                    raise failed
                self.log.warning("%s", failed)
                return True

    def _tell_refused(self, home: FlowHome, context: Context) -> None:
        """Tell of the change that the driver which just ended has tried."""
        current_change = change.read(home, read_manifest(_settings()).find(home.full_name).fingerprint)
        if current_change is not None and current_change.keeps_out:
            self._tell_change(current_change, context)

    def _failed(self, home: FlowHome, ending: Ending) -> DriverFailed:
        output = f" Its output: {self._driver.log}" if self._driver and self._driver.log else ""
        epoch = self._epoch(home, ending)
        streak = None if epoch is None else failing_streak(home)
        loop = crash_loops.note(home, epoch=epoch)
        description = f"The driver of {home.full_name} ended: {ending.description}.{output}"
        details = ({} if epoch is None else leases.failure_of(home, epoch)) or {}
        failure = failures.read(details)
        if failure is not None and ending.code not in OUT_OF_MEMORY:  # of that it is an echo
            description = (
                f"{failures.describe(home.full_name, failure, retried=failure.lasts)}\n{description}"
            )
        events.note(
            home,
            Kind.RETRIED,
            description,
            loop.times[-1] if epoch is None else epoch,
            by="supervisor",
            epoch=epoch,
        )
        self._tell(home, ending, loop, description, details)
        return DriverFailed(description, ending.code, streak, loop.looping)

    def _tell(
        self, home: FlowHome, ending: Ending, loop: Failures, description: str, details: Mapping[str, Any]
    ) -> None:
        """Record alerts of failures that retries alone will hardly mend, each once, whatever tries follow."""
        settings = Settings.from_environment()
        if ending.code == Outcome.RETRY_DECLARED:
            text = describe_retried(home.full_name, dict(details))
            record_alert(settings, AlertKind.RETRIED_AS_DECLARED, home.full_name, text, loop.occasion)
        if ending.code == Outcome.USAGE:
            text = (
                f"{description}\nIts settings or its command line cannot be used; see its output. Correct"
                " them, and start Airflow again."
            )
            record_alert(settings, AlertKind.SETTINGS, home.full_name, text, loop.occasion)
        if loop.looping:
            longest = LONGEST_DELAY.total_seconds() / 60
            text = (
                f"Drivers of {home.full_name} fail repeatedly without committing a batch"
                f" ({loop.occasion}). The next tries wait {longest:.0f} min each. The last one: {description}"
            )
            record_alert(settings, AlertKind.CRASH_LOOP, home.full_name, text, loop.occasion)

    def _say_parked(self, home: FlowHome) -> str:
        """Log what parked a flow and which recovery fits; return it as the run's note. The monitor alerts."""
        park = holds.parked(home)
        note = (
            describe_park(home.full_name, park, self.once)
            if park
            else f"{home.full_name} was parked, and the park has been released."
        )
        self.log.error("%s", note)
        return note


def _settings() -> Settings:
    try:
        return Settings.from_environment()
    except SettingsError as error:
        raise WrongSettings(str(error)) from error


def _newest_epochs(homes: Sequence[FlowHome]) -> dict[str, int]:
    return {home.full_name: _newest_epoch(home) for home in homes}


def _newest_epoch(home: FlowHome) -> int:
    return max(home.epochs(), default=0)


def name_of(context: Context) -> str:
    """Return the name of a task's try: DAG, run, task and number."""
    ti = context["ti"]
    return f"{ti.dag_id} {ti.run_id} {ti.task_id}, try {ti.try_number}"
