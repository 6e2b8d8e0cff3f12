"""The tasks of ``hold_flows`` and ``release_flows``, which carry out a request.

How drivers are stopped is decided in streamkeeper.drivers.stopping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.drivers import stopping, waves
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import open_home
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.hold_flows import HoldRequest, ReleaseRequest, describe_release
from streamkeeper.settings import Settings
from streamkeeper_airflow import forms

HOLD = "hold"


class HoldFlows(BaseOperator):
    """Puts the hold of the run's user on the flows in the form, after all of them were checked."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the flows that are held now, the hold's owner, and the deadline for their drivers.

        :raises AirflowFailException: a value of the form does not fit; another try would fail alike.
        """
        settings = Settings.from_environment()
        request = forms.request_of(HoldRequest, context)
        put = request.put(open_home(settings, request.flows[0]))
        for flow, hold in zip(request.flows, put, strict=True):
            self.log.info("%s is held by %s: %s", flow, hold.owner, hold.reason)
        return {"flows": list(request.flows), "owner": request.owner, "deadline": request.deadline}


class StopDrivers(BaseOperator):
    """Waits until the drivers of held flows are gone; after the deadline it kills those on this host.

    :param trust: lets the pages of the cluster that a connection names be asked.
    """

    def __init__(self, *, trust: Callable[[str], None] = lambda _: None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trust = trust

    def execute(self, context: Context) -> dict[str, str]:
        """Return how the driver of each flow ended.

        :raises AirflowFailException: some driver still runs; the holds stay, and the message says what to do.
        """
        hold = context["ti"].xcom_pull(task_ids=HOLD)
        settings = Settings.from_environment()
        homes = [open_home(settings, flow) for flow in hold["flows"]]
        declared = {pipeline.connection for pipeline in read_manifest(settings).pipelines}
        for connection in filter(None, {settings.connection, *declared}):
            self.trust(connection)
        try:
            stops = stopping.stop_all(homes, hold["deadline"], term=settings.lease_term, say=self.log.warning)
        except StreamkeeperError as error:
            raise AirflowFailException(str(error)) from error
        for stop in stops:
            self.log.info("%s %s.", stop.flow, stop.by.value)
        return {stop.flow: stop.by.value for stop in stops}


class ReleaseFlows(BaseOperator):
    """Removes a person's hold from the flows in the form: that of the run's user, or of the named person."""

    def execute(self, context: Context) -> dict[str, list[str]]:
        """Return for each flow who still holds it.

        :raises AirflowFailException: a value of the form does not fit; another try would fail alike. Or a
            flow of a wave does not run again: another try would release the next wave.
        """
        settings = Settings.from_environment()
        request = forms.request_of(ReleaseRequest, context)
        home = open_home(settings, request.flows[0])
        try:
            released = request.release(home, forms.asker(context), self.log.info)
        except waves.NotRunning as error:
            raise AirflowFailException(str(error)) from error
        for one in released:
            self.log.info(
                "%s: %s", one.home.full_name, describe_release(request.owner, one.owners, one.holds)
            )
        return {one.home.full_name: [hold.owner for hold in one.holds] for one in released}
