"""What becomes of a flow whose table is put back: it goes on after the batch that the table holds last, in a generation of its own.

The batch is named where its offsets are still in the checkpoint, so that the state of that moment can be copied. Where Spark has removed
them, the offsets that the backup kept say the same, and state is rebuilt.
"""

from __future__ import annotations

from streamkeeper import generations, holds, places
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.generations import EARLIEST, OFFSETS, REBUILT, Generation, Start, StartAt
from streamkeeper.home import FlowHome
from streamkeeper.manifest import Flow
from streamkeeper.opening import opened_if_possible
from streamkeeper.plans import FlowPlan, Refusal, SourcePrice
from streamkeeper.positions import describe
from streamkeeper.prices import refusals_of
from streamkeeper.prices_place import Move, price_from
from streamkeeper.requests import UNKNOWN_PRICE
from streamkeeper.reset_requests import ResetRequest
from streamkeeper.settings import Settings
from streamkeeper.standing import Standing, last_begun, look
from streamkeeper.storage import open_storage
from streamkeeper.table_versions import FlowAt
