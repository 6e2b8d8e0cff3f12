"""Metrics for OpenTelemetry: one push over OTLP, set up by OpenTelemetry's own environment variables.

No thread is left behind, and a collector that does not answer costs some seconds at most
(``OTEL_EXPORTER_OTLP_TIMEOUT``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamkeeper import __version__
from streamkeeper.errors import SettingsError, StreamkeeperError
from streamkeeper.health.metrics import COUNTER, Metric
from streamkeeper.redaction import redact_text

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

TIMEOUT = 5.0
"""Seconds for a push, unless OpenTelemetry's variables say otherwise."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER, _INTERVAL, _DISABLED = "OTEL_METRICS_EXPORTER", "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_SDK_DISABLED"
_HTTP = "http/protobuf"
_MINUTE_MS = 60_000
_LOGGER = "opentelemetry.exporter.otlp"


class PushFailed(StreamkeeperError):
    """The collector did not take the metrics; the message says why."""


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the variables ask for metrics over OTLP: by an endpoint, or by the exporter's name."""
    chosen = [one.strip().lower() for one in environment.get(_EXPORTER, "").split(",") if one.strip()]
    if environment.get(_DISABLED, "").strip().lower() == "true":
        return False
    return "otlp" in chosen if chosen else any(environment.get(name) for name in _ENDPOINTS)


def is_due(at: float, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a run of the monitor is one that pushes: each, or the one of each interval.

    :param at: when it runs, in seconds since 1970; it runs once a minute.
    :raises SettingsError: the interval is no number of milliseconds above 0.
    """
    interval = environment.get(_INTERVAL, "").strip() or str(_MINUTE_MS)
    if not interval.isdecimal() or int(interval) == 0:
        raise SettingsError(
            f"{_INTERVAL} is {interval!r}: give milliseconds, such as 60000. The monitor pushes once a minute"
            " at most."
        )
    return int(at * 1000) // _MINUTE_MS % max(1, int(interval) // _MINUTE_MS) == 0


def push(metrics: Iterable[Metric], at: float) -> None:
    """Send metrics to the collector that the environment names.

    :param at: when they were read, in seconds since 1970.
    :raises SettingsError: a variable has a value that cannot be used, or nothing names a collector.
    :raises PushFailed: a package is missing, or the collector did not take them.
    """
    _check(os.environ)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
    except ImportError as error:
        raise PushFailed(
            f"Metrics over OTLP need a package that is not installed: {error}. Install"
            " streamkeeper-airflow[otlp]."
        ) from error
    with _log_messages() as messages:
        try:
            own = None if any(os.environ.get(name) for name in _TIMEOUTS) else TIMEOUT
            exporter = OTLPMetricExporter(timeout=own)
            result = exporter.export(_data(metrics, at))
            exporter.shutdown()
        except Exception as error:  # the SDK promises no kinds of errors
            raise PushFailed(redact_text(f"No metrics were pushed over OTLP: {error}")) from error
    if result is not MetricExportResult.SUCCESS:
        reason = "; ".join(messages) or "the collector did not take them"
        raise PushFailed(redact_text(f"No metrics were pushed over OTLP: {reason}"))


def _check(environment: Mapping[str, str]) -> None:
    if not is_wanted(environment):
        raise SettingsError(
            f"No collector is named for metrics over OTLP. Set {_ENDPOINTS[1]}, such as"
            f" http://collector:4318, and neither {_DISABLED} nor another {_EXPORTER} than otlp."
        )
    protocol = next((configured for name in _PROTOCOLS if (configured := environment.get(name))), _HTTP)
    if protocol != _HTTP:
        raise SettingsError(
            f"Metrics are pushed by {_HTTP}, and the environment asks for {protocol}. Set {_PROTOCOLS[0]} to"
            f" {_HTTP}, and {_ENDPOINTS[0]} to the collector's address for it, such as"
            " http://collector:4318/v1/metrics."
        )


def _data(metrics: Iterable[Metric], at: float) -> MetricsData:
    """Return metrics as the SDK's exporter takes them."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as SdkMetric
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    def points(metric: Metric) -> list[NumberDataPoint]:
        return [
            NumberDataPoint(dict(one.labels), _nanoseconds(one.since or 0.0), _nanoseconds(at), one.value)
            for one in metric.samples
        ]

    def converted(metric: Metric) -> SdkMetric:
        data_points: Any = points(metric)
        data = (
            Sum(data_points, AggregationTemporality.CUMULATIVE, True)
            if metric.kind == COUNTER
            else Gauge(data_points)
        )
        return SdkMetric(metric.name, metric.help, metric.unit, data)

    # Without an id of this process, which Resource.create() makes: each push would make new series.
    ours = Resource({"service.name": "streamkeeper", "service.version": __version__})
    scope = ScopeMetrics(InstrumentationScope("streamkeeper", __version__), [*map(converted, metrics)], "")
    return MetricsData([ResourceMetrics(ours.merge(OTELResourceDetector().detect()), [scope], "")])


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000


@contextmanager
def _log_messages() -> Iterator[list[str]]:
    """Collect what the SDK's exporter logs: its answer is only whether it succeeded."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger(_LOGGER), Collect(logging.WARNING)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
