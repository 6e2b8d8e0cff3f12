"""What a pipeline file makes of rows, in a test: its views, and its flows with their state, batch by batch,
by the very driver that runs them.
"""

from __future__ import annotations

from streamkeeper.testing.pipeline_test import PipelineTest

__all__ = ["PipelineTest"]
