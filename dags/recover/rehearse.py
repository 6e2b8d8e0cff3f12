"""Tries a recovery, or a changed declaration, on a copy, shows what it came to, and asks: go or no-go?

Go starts the recovery, with the rehearsal's evidence. It is refused if it would be another one than was
rehearsed.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("rehearse", doc_md=__doc__)
