"""Values that do not fit a form, of every kind of recovery: refused before anything is touched, naming field,
value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.recover.requests.form import RUN, FormField
from tests.worlds.small_world import World, write_manifest

OF_OTHER_TYPES: dict[str, list[Any]] = {
    "string": [7, True, ["a"], {"a": 1}],
    "boolean": ["true", 1, None],
    "number": ["7", True, [1], float("nan")],
    "object": ["{}", [1], 3],
    "array": ["data-loss", {"data-loss": 1}, 7],
}
NAMES = [
    "",
    "no body",
    "../../etc/passwd",
    "events'; drop table",
    "events.nobody",
    "{{ 7 * 7 }}",
    "x" * 5000,
    "\x00",
    None,
]
NUMBERS: list[Any] = [-1, float("inf"), -0.5]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    world = World(tmp_path_factory.mktemp("declared"))
    world.declare()
    return write_manifest(world.settings)


def good(name: str, manifest: Manifest) -> dict[str, Any]:
    """Give values of the fields that have no default and name something declared."""
    form = kind(name).form(manifest)
    return {
        field.name: field.enum[0]
        for field in form
        if field.default is None and not field.nullable and field.enum
    }


def bad_values(field: FormField) -> Iterator[Any]:
    yield from (value for value in OF_OTHER_TYPES[field.type] if not (value is None and field.nullable))
    if field.name in ("flow", "table", "pipeline"):
        yield from (
            name
            for name in NAMES
            if not (name is None and field.nullable) and not (name == "" and field.nullable)
        )
    elif field.many:
        yield from (["everything"], [7], [None])
    elif field.enum is not None:
        yield from ("everything", "")
    if field.type == "number":
        yield from NUMBERS


def of(name: str) -> list[FormField]:
    return list(kind(name).form(Manifest("", (), {}, {})))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_value_that_does_not_fit_its_field_is_refused_with_field_and_value(
    name: str, manifest: Manifest
) -> None:
    cases = [(field.name, value) for field in of(name) for value in bad_values(field)]
    assert cases
    assert [wrong for field, value in cases if (wrong := wrong_refusal(name, field, value, manifest))] == []


def wrong_refusal(name: str, field: str, value: object, manifest: Manifest) -> str | None:
    """Say what is wrong with how a value is refused; None where it is right."""
    case = f"{field} = {str(value)[:40]!r}"
    try:
        kind(name).parse({**good(name, manifest), field: value}, manifest, "ada")
    except RequestError as error:
        refused = str(error)
    except Exception as error:  # noqa: BLE001 - told with its case, so that the other cases are tried too
        return f"{case} raises {error!r}"
    else:
        return f"{case} is not refused"
    (asked,) = [item for item in kind(name).form(manifest) if item.name == field]
    said = "\n".join(line for line in refused.splitlines() if field in line or repr(value)[:200] in line)
    if not any(found in said for found in (repr(value), repr(str(value)), str(value))):
        return f"{case}: what was found is not said: {refused}"
    allowed = (
        "must be",
        "allowed ",
        "there are:",
        "declared are",
        "give ",
        "leave it empty",
        *(asked.enum or ()),
    )
    return (
        None
        if any(word in said.lower() for word in allowed)
        else f"{case}: what is allowed is not said: {said}"
    )


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_field_that_no_form_has_is_refused_with_those_that_it_has(name: str, manifest: Manifest) -> None:
    with pytest.raises(RequestError, match=r"Unknown: 'colour', 'tabel'. Allowed are ") as refused:
        kind(name).parse({**good(name, manifest), "tabel": 1, "colour": "red"}, manifest, "ada")
    assert all(field.name in str(refused.value) for field in kind(name).form(manifest))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_all_that_is_wrong_is_said_at_once(name: str, manifest: Manifest) -> None:
    wrong = {"colour": "red", "reason": 7, "approval": "perhaps"}
    with pytest.raises(RequestError) as refused:
        kind(name).parse({**good(name, manifest), **wrong}, manifest, "ada")
    assert all(field in str(refused.value) for field in wrong)
    assert "nothing was changed" in str(refused.value) or "Nothing was" in str(refused.value)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_says_how_a_recovery_is_run_is_in_every_form(name: str) -> None:
    assert [field.name for field in of(name)[-3:]] == [field.name for field in RUN]
