"""The task of ``abandon_recovery``."""

from __future__ import annotations

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.errors import StreamkeeperError
from streamkeeper.recover import engine
from streamkeeper.recover.requests.hold_flows import AbandonRequest
from streamkeeper.settings import Settings
from streamkeeper_airflow import forms


class AbandonRecovery(BaseOperator):
    """Gives up the recovery in the form: its holds and locks are removed, and its changes stay."""

    def execute(self, context: Context) -> str:
        """Return the recovery's id.

        :raises AirflowFailException: there is no such recovery, or it is over; another try would fail alike.
        """
        settings, request = Settings.from_environment(), forms.request_of(AbandonRequest, context)
        reason = f"{request.by}: {request.reason}" if request.reason else request.by
        try:
            pipeline = engine.pipeline_of(settings, request.recovery)
            engine.abandon(settings, pipeline, request.recovery, reason)
        except StreamkeeperError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s is given up; its holds and locks are removed.", request.recovery)
        return request.recovery
