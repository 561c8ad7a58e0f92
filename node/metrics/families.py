"""Metrics by Kafka's names as families of Prometheus (pure).

Kafka names a metric in one of two ways, `ActiveBrokerCount` or `commit-latency-avg`. Here the first
is `tidemark_controller_active_broker_count`, and its help has Kafka's own name. Rates are left out:
Prometheus makes them of the totals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

PREFIX = "tidemark"
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RATES = ("PerSec", "-rate", "-rate-avg")
_TOTALS = ("Total", "-total")

Value = int | float | str


def snake_case(name: str) -> str:
    """`ActiveBrokerCount` and `active-broker-count` as `active_broker_count`."""
    return _WORD.sub("_", name).replace("-", "_").lower()


def of_kafka(group: str, bean: str, metrics: Mapping[str, Value]) -> Iterator[Metric]:
    """The families of a group of metrics by Kafka's names, whose MBean is `bean`.

    A name that ends with Total is a counter, a text is a label of a gauge that is 1.
    """
    for name, value in metrics.items():
        if name.endswith(_RATES):
            continue
        told = f"Kafka's {bean}, {name}"
        plain = f"{PREFIX}_{group}_{snake_case(name).removeprefix(f'{group}_')}"
        if isinstance(value, str):
            labelled = GaugeMetricFamily(plain, told, labels=["value"])
            labelled.add_metric([value], 1)
            yield labelled
        elif name.endswith(_TOTALS):
            yield CounterMetricFamily(plain.removesuffix("_total"), told, value=value)
        else:
            yield GaugeMetricFamily(plain, told, value=value)


def gauge(name: str, told: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", told, value=value)


def labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    told: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """A gauge or a counter for each value of one label."""
    family = kind(f"{PREFIX}_{name}", told, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def histogram(name: str, told: str, buckets: Iterable[tuple[float, int]], count: int) -> Metric:
    """A histogram of seconds, from cumulative counts by upper bound; its sum is not known."""
    bounds = [(f"{bound:g}", float(number)) for bound, number in buckets]
    family = HistogramMetricFamily(f"{PREFIX}_{name}", told)
    family.add_metric([], [*bounds, ("+Inf", float(count))], sum_value=None)
    return family
