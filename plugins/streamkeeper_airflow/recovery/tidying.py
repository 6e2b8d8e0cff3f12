"""The tasks of ``tidy_tables``: what streamkeeper.recover.kinds.tidy_tables plans, and the Spark job that
carries it out.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamkeeper.drivers import submit
from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.kinds import tidy_tables
from streamkeeper.recover.requests.tidy_tables import TidyRequest
from streamkeeper.settings import Settings
from streamkeeper_airflow import forms
from streamkeeper_airflow.flow.submit import SubmitJob


class PlanTidying(BaseOperator):
    """Says what is done to which tables, and what of their past must stay. Looks only; no JVM."""

    def execute(self, context: Context) -> str:
        """Give the plan, as the job takes it.

        :raises AirflowFailException: a value of the form does not fit; another try would meet the same.
        :raises AirflowSkipException: only the plan was asked for, or no table can be tidied; the steps after
            it are skipped.
        """
        settings = Settings.from_environment()
        known = read_manifest(settings)
        try:
            asked = TidyRequest.parse(
                forms.values(context, TidyRequest.form(known)), known, forms.asker(context)
            )
        except RequestError as error:
            raise AirflowFailException(str(error)) from error
        tidies = tidy_tables.plan(settings, known, asked)
        for tidy in tidies:
            self.log.info("%s", tidy.describe())
        if asked.dry_run or all(tidy.left_alone is not None for tidy in tidies):
            raise AirflowSkipException(
                "Only the plan was asked for." if asked.dry_run else "There is no table to tidy."
            )
        return tidy_tables.to_text(tidies)


class TidyTables(SubmitJob):
    """Carries the plan of another task out, as a job of its own."""

    def __init__(self, *, plan_task_id: str, **kwargs: Any) -> None:
        super().__init__(job=submit.TIDYING_JOB, name="tidy_tables", **kwargs)
        self.plan_task_id = plan_task_id

    def execute(self, context: Context) -> None:
        """Run the job and wait for its end.

        :raises AirflowException: a table could not be tidied; the job's log says which and why.
        """
        plan = context["ti"].xcom_pull(task_ids=self.plan_task_id)
        tables = {(tidy.pipeline, tidy.table) for tidy in tidy_tables.from_text(plan)}
        self.take(lambda master: submit.tidying(Settings.from_environment(), plan, tables, master))
        super().execute(context)
