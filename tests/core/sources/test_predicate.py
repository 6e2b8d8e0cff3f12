"""Predicates of a backfill: conditions on columns, and nothing else."""

from __future__ import annotations

import pytest

from streamkeeper.sources.predicate import why_refused

TAKEN = (
    "customer_id < 1000",
    "name = 'O''Brien, select (table) reflect(' AND n IS NOT DISTINCT FROM 3.5e2",
    'extract(year FROM at) = 2026 and note = "--"',
    "exists(parts, p -> p.n > 3) or map('a', 1)['a'] = 1",
    "`select`.`from` in (1, 2) and kind like '%\\\\d'",
    "name rlike r'\\d+' and reflect > 3",
)
REFUSED = (
    ("raise_error(reflect('java.lang.System','getenv','HOME'))", "calls reflect, which calls into the JVM"),
    ("`Java_Method` ('java.lang.System', 'exit', 0)", "calls java_method"),
    ("spark_catalog.try_reflect\n('x', 'y')", "calls try_reflect"),
    ("identifier('reflect')('java.lang.System', 'exit')", "calls identifier"),
    (
        "from_avro(value, '', map('avroSchemaUrl', 'file:///etc/passwd')) is null",
        "calls from_avro, which can read",
    ),
    ("id IN (SELECT value FROM text.`/etc/passwd`)", "a sub-query, which reads another table or file"),
    ("id in ( table passwords)", "a sub-query"),
    ("id in (from text.`/etc/passwd`)", "a sub-query"),
    ("exists (with x as (values (1)) table x)", "a sub-query"),
    ("id > 1 -- and more", "no comments"),
    ("reflect/**/('a', 'b')", "no comments"),
    ("name = r'\\' or reflect('a', 'b') = '", "backslashes before quotes"),
    ("name = 'a\\' or reflect('a', 'b') or '", "backslashes before quotes"),
    ("name = 'open", "open quotes"),
    ("$$'$$ = 1", "signs other than SQL's"),
)


@pytest.mark.parametrize("predicate", TAKEN)
def test_a_condition_on_columns_is_taken(predicate: str) -> None:
    assert why_refused(predicate) is None


@pytest.mark.parametrize(("predicate", "said"), REFUSED)
def test_what_reaches_outside_of_the_row_is_refused_in_words(predicate: str, said: str) -> None:
    assert said in str(why_refused(predicate))
