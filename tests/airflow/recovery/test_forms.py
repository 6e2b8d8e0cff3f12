"""A recovery's form fields as Airflow's parameters, and the values that come back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from streamkeeper_airflow import forms

from streamkeeper.recover.requests.form import FormField

CHOICE = FormField("flow", "string", "Flow", "which", None, ("p.one", "p.two"))
STATE = FormField("state", "string", "State", "kept", "rebuilt", ("rebuilt", "empty"))
MOMENT = FormField(
    "moment", "string", "Moment", "when", nullable=True, format="date-time", section="Position"
)
ACCEPT = FormField("accept", "array", "Accept", "impact", [], ("data-loss", "duplicates"), many=True)
REASON = FormField("reason", "string", "Reason", "why", "")
SURE = FormField("sure", "boolean", "Sure", "yes or no", False)


def context(params: dict[str, Any], conf: dict[str, Any] | None) -> Context:
    return cast("Context", {"params": params, "dag_run": SimpleNamespace(conf=conf)})


@pytest.mark.parametrize(
    ("field", "schema"),
    [
        pytest.param(
            STATE, {"type": "string", "title": "State", "enum": ["rebuilt", "empty"]}, id="a choice"
        ),
        pytest.param(
            MOMENT,
            {"type": ["string", "null"], "title": "Moment", "format": "date-time", "section": "Position"},
            id="an optional moment",
        ),
        pytest.param(REASON, {"type": ["string", "null"], "title": "Reason"}, id="an optional text"),
        pytest.param(SURE, {"type": "boolean", "title": "Sure"}, id="a switch"),
        pytest.param(
            ACCEPT,
            {
                "type": ["array", "null"],
                "title": "Accept",
                "items": {"type": "string", "enum": ["data-loss", "duplicates"]},
                "examples": ["data-loss", "duplicates"],
            },
            id="several of many",
        ),
    ],
)
def test_a_field_becomes_a_parameter_with_its_schema_and_default(
    field: FormField, schema: dict[str, Any]
) -> None:
    param = forms.params([field])[field.name]
    assert {name: value for name, value in param.schema.items() if name != "description_md"} == schema
    assert param.resolve() == field.default


def test_a_field_without_a_default_is_required() -> None:
    params = ParamsDict(forms.params([CHOICE]))
    with pytest.raises(ParamValidationError, match="flow"):
        params.validate()


def test_a_value_outside_of_a_choice_is_refused_by_airflow_already() -> None:
    with pytest.raises(ParamValidationError, match=r"'p\.three' is not one of"):
        forms.params([CHOICE])["flow"].resolve("p.three")


def test_unknown_keys_of_the_run_come_along_so_that_they_can_be_refused() -> None:
    assert forms.values(context({"flow": "p.one"}, {"flow": "p.two", "colour": "red"}), [CHOICE]) == {
        "flow": "p.two",
        "colour": "red",
    }


@pytest.mark.parametrize(
    ("given", "read"),
    [
        pytest.param({}, None, id="an empty object"),
        pytest.param(" ", None, id="an empty text"),
        pytest.param(None, None, id="nothing"),
        pytest.param('{"a": {"logOffset": 7}}', {"a": {"logOffset": 7}}, id="a text, as the form sends it"),
        pytest.param({"a": 1}, {"a": 1}, id="an object, as the API sends it"),
        pytest.param("{a: 7", "{a: 7", id="no JSON, which is refused as it is"),
    ],
)
def test_an_object_is_asked_for_as_a_text(given: object, read: object) -> None:
    offsets = FormField("offsets", "object", "Offsets", "where", nullable=True)
    param = forms.params([offsets])["offsets"]
    assert (param.schema["type"], param.resolve()) == (["string", "object", "null"], None)
    assert forms.values(context({"offsets": given}, None), [offsets]) == {"offsets": read}


def test_what_is_for_schedules_is_not_in_the_form_and_taken_all_the_same() -> None:
    accept = replace(ACCEPT, unattended=True)
    assert list(forms.params([accept, REASON])) == ["reason"]
    assert forms.values(context({"reason": ""}, {"accept": ["data-loss"]}), [accept, REASON]) == {
        "reason": "",
        "accept": ["data-loss"],
    }


def test_a_flow_that_the_form_suggests_counts_only_where_the_run_was_triggered_with_it() -> None:
    field = replace(CHOICE, mends=True, suggested="p.two")
    param = forms.params([field])["flow"]
    assert param.resolve() == "p.two"
    assert forms.values(context({"flow": "p.two"}, {}), [field]) == {"flow": None}, (
        "by the API, without a flow"
    )
    assert forms.values(context({"flow": "p.two"}, {"flow": "p.two"}), [field]) == {"flow": "p.two"}


def test_a_whole_number_is_asked_for_as_one() -> None:
    field = FormField("chunk", "number", "Chunk", "how many", nullable=True, whole=True, least=1)
    assert forms.params([field])["chunk"].schema["type"] == ["integer", "null"]


def test_an_emptied_field_means_its_default_and_a_required_one_stays_empty() -> None:
    given = {"reason": None, "moment": None, "flow": None}
    assert forms.values(context(given, None), [CHOICE, MOMENT, REASON]) == {"moment": None, "flow": None}
