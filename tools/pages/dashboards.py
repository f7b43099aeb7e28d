"""Grafana dashboards as JSON: of a pair, of its services, its nodes and its durable store.

A panel is a title, a unit and its queries; the rest of Grafana's model (schema 39, Grafana 10 or newer) is
the same for all. What a panel says about itself is the text of its metric's definition. The model is plain
data: a library of it would be one more package that every check of the sources needs.

``queries`` are what tests ask a real Prometheus.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily

from bstar_broker.operate import metrics

FOLDER: Final = "configs/grafana/dashboards"

_WIDTH, _HEIGHT, _STAT_HEIGHT, _COLUMNS = 8, 8, 4, 24
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WINDOW: Final = "$__rate_interval"


class Panel(msgspec.Struct, frozen=True):
    """``queries`` are pairs of a legend and PromQL. ``kind``: timeseries, stat or state-timeline."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"


class Dashboard(msgspec.Struct, frozen=True):
    """One file. ``is_by_node``: the reader chooses among nodes, too."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    is_by_node: bool = False


def _definitions() -> dict[str, str]:
    """What each metric of the tables means, by its name in a query."""
    tables = [rows for name, rows in vars(metrics).items() if name.startswith("_OF_")]
    return {
        name + ("_total" if kind is CounterMetricFamily else ""): text
        for kind, name, _, text in chain.from_iterable(tables)
    }


_MEANINGS: Final = _definitions()
_OF_PAIR, _OF_NODE = '{pair=~"$pair"}', '{pair=~"$pair",instance=~"$instance"}'


def _by_node(metric: str, legend: str = "{{instance}}") -> tuple[tuple[str, str], ...]:
    return ((legend, f"{metric}{_OF_NODE}"),)


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{_OF_PAIR}[{_WINDOW}]))"


def _node_rate(metric: str) -> tuple[tuple[str, str], ...]:
    return (("{{instance}}", f"rate({metric}{_OF_NODE}[{_WINDOW}])"),)


def _pair_rate(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return ((f"{{{{{by}}}}}", _rate(metric, by)),)


def _quantiles(metric: str, by: str, *parts: float) -> tuple[tuple[str, str], ...]:
    rates = f"sum by ({by}, le) (rate({metric}_bucket{_OF_PAIR}[{_WINDOW}]))"
    return tuple(
        (f"p{part * 100:g} {{{{{by}}}}}", f"histogram_quantile({part:g}, {rates})") for part in parts
    )


def _max(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return ((f"{{{{{by}}}}}", f"max by ({by}) ({metric}{_OF_PAIR})"),)


PAIR: Final = Dashboard(
    "bstar-pair",
    "bstar: pair",
    (
        Panel("Nodes that serve", (("{{pair}}", f"sum by (pair) (bstar_active{_OF_PAIR})"),), kind="stat"),
        Panel("Epoch", _max("bstar_epoch_seen", "pair"), kind="stat"),
        Panel("Peers heard", (("{{pair}}", f"sum by (pair) (bstar_peer_fresh{_OF_PAIR})"),), kind="stat"),
        Panel("Takeovers paused", _max("bstar_takeovers_paused", "pair"), kind="stat"),
        Panel(
            "Served, last day", (("{{pair}}", f"pair:bstar_served:share1d{_OF_PAIR}"),), "percentunit", "stat"
        ),
        Panel(
            "Alerts",
            (("{{alertname}}", 'count by (alertname) (ALERTS{alertstate="firing"}) or vector(0)'),),
            kind="stat",
        ),
        Panel("Who serves", (("{{instance}}", f"bstar_active{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Peer heard", (("{{instance}}", f"bstar_peer_fresh{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Became active", (("{{instance}}", f"increase(bstar_activations_total{_OF_PAIR}[5m])"),)),
        Panel("Since the peer's last message", (("{{instance}}", f"bstar_peer_age_seconds{_OF_PAIR}"),), "s"),
        Panel("Arbiter heard", (("{{instance}}", f"bstar_arbiter_fresh{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Majority", (("{{instance}}", f"bstar_majority{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Clients cut off", (("{{instance}}", f"bstar_clients_cut_off{_OF_PAIR}"),)),
        Panel(
            "Requests to a node that does not serve",
            _pair_rate("bstar_requests_not_admitted_total", "instance"),
            "reqps",
        ),
        Panel(
            "Changes of state", (("{{instance}}: {{from}} to {{to}}", f"bstar_transitions_total{_OF_PAIR}"),)
        ),
    ),
)

SERVICES: Final = Dashboard(
    "bstar-services",
    "bstar: services",
    (
        Panel("Ended", _pair_rate("bstar_requests_total", "service"), "reqps"),
        Panel("Ended, by outcome", _pair_rate("bstar_requests_total", "outcome"), "reqps"),
        Panel(
            "Share that ended badly, 5 minutes",
            (("{{service}}", f"pair_service:bstar_requests_bad:share5m{_OF_PAIR}"),),
            "percentunit",
        ),
        Panel("Median of the latency", _quantiles("bstar_request_latency_seconds", "service", 0.5), "s"),
        Panel(
            "p99 of the latency",
            (("{{service}}", f"pair_service:bstar_request_latency_seconds:p99_5m{_OF_PAIR}"),),
            "s",
        ),
        Panel(
            "Error budget: burn rate, 1 hour",
            (("{{service}}", f"pair_service:bstar_requests_bad:burn1h{_OF_PAIR}"),),
        ),
        Panel("Queue", _max("bstar_queue_length", "service")),
        Panel("Oldest waits for", _max("bstar_oldest_waiting_seconds", "service"), "s"),
        Panel("In flight", _max("bstar_requests_in_flight", "service")),
        Panel("Oldest runs for", _max("bstar_oldest_running_seconds", "service"), "s"),
        Panel("Workers", _max("bstar_workers", "service")),
        Panel("Stuck workers", _max("bstar_workers_stuck", "service")),
        Panel("Redelivered", _pair_rate("bstar_redeliveries_total", "service"), "reqps"),
        Panel("Repeated by clients", _pair_rate("bstar_duplicates_total", "service"), "reqps"),
        Panel(
            "Workers lost",
            (("{{service}}", f"sum by (service) (increase(bstar_workers_lost_total{_OF_PAIR}[5m]))"),),
        ),
        Panel("Peers of fronts", (("{{instance}} {{front}}: {{kind}}", f"bstar_front_peers{_OF_PAIR}"),)),
        Panel(
            "Events of fronts",
            (
                (
                    "{{front}}: {{event}}",
                    f"sum by (front, event) (rate(bstar_front_events_total{_OF_PAIR}[{_WINDOW}]))",
                ),
            ),
            "ops",
        ),
    ),
)

NODES: Final = Dashboard(
    "bstar-nodes",
    "bstar: nodes",
    (
        Panel("CPU", _node_rate("process_cpu_seconds_total"), "percentunit"),
        Panel("Memory", _by_node("process_resident_memory_bytes"), "bytes"),
        Panel(
            "Descriptors",
            (*_by_node("process_open_fds"), *_by_node("bstar_descriptors_max", "{{instance}} may have")),
        ),
        Panel("p99 of the loop's lag", _quantiles("bstar_loop_lag_seconds", "instance", 0.99), "s"),
        Panel("The loop's worst lag since the start", _by_node("bstar_loop_lag_max_seconds"), "s"),
        Panel("Turns of the loop", _node_rate("bstar_loop_turns_total"), "ops"),
        Panel("Connections", _by_node("bstar_connections")),
        Panel("New connections", _node_rate("bstar_connections_accepted_total"), "cps"),
        Panel("Connections hung up", _node_rate("bstar_connections_hung_up_total"), "cps"),
        Panel("Networks held off", _by_node("bstar_networks_held_off")),
        Panel("Clients with a request", _by_node("bstar_clients")),
        Panel("Bytes in queues", _by_node("bstar_queue_bytes"), "bytes"),
        Panel("Idle workers", _by_node("bstar_workers_idle")),
        Panel("State messages of the peer", _node_rate("bstar_peer_messages_total"), "ops"),
        Panel("Records of the journal", _node_rate("bstar_journal_records_total"), "ops"),
        Panel(
            "Records that the journal dropped",
            (("{{instance}}: {{about}}", f"increase(bstar_journal_dropped_total{_OF_NODE}[5m])"),),
        ),
        Panel("Descriptors short", _by_node("bstar_descriptors_short"), kind="state-timeline"),
        Panel("Runs for", _by_node("bstar_uptime_seconds"), "s"),
    ),
    is_by_node=True,
)

STORE: Final = Dashboard(
    "bstar-store",
    "bstar: durable store",
    (
        Panel("Leads", (("{{instance}}", f"bstar_store_leading{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Copies of an acknowledged request", (("{{instance}}", f"bstar_store_copies{_OF_PAIR}"),)),
        Panel("Trouble", (("{{instance}}", f"bstar_store_trouble{_OF_PAIR}"),), kind="state-timeline"),
        Panel("Requests, by state", (("{{state}}", f"max by (state) (bstar_store_requests{_OF_PAIR})"),)),
        Panel("Acknowledged", _pair_rate("bstar_store_acknowledged_total", "pair"), "reqps"),
        Panel(
            "Ended, by state",
            (("{{state}}", f"max by (state) (rate(bstar_store_ended_total{_OF_PAIR}[{_WINDOW}]))"),),
            "reqps",
        ),
        Panel("Oldest that is due", _max("bstar_store_oldest_pending_seconds", "pair"), "s"),
        Panel("At the broker", _max("bstar_store_running", "pair")),
        Panel("Clients that wait for an answer", _max("bstar_store_waiting_fetches", "pair")),
        Panel("Attempts, by end", _pair_rate("bstar_store_attempts_total", "end"), "reqps"),
        Panel("Follower behind", (("{{instance}}", f"bstar_store_lag_seconds{_OF_PAIR}"),), "s"),
        Panel("Follower behind, entries", (("{{instance}}", f"bstar_store_lag_entries{_OF_PAIR}"),)),
        Panel("p99 of a sync", _quantiles("bstar_store_sync_seconds", "instance", 0.99), "s"),
        Panel(
            "Transactions",
            (("{{instance}}", f"rate(bstar_store_commits_total{_OF_PAIR}[{_WINDOW}])"),),
            "ops",
        ),
        Panel("Orders that wait for the disk", (("{{instance}}", f"bstar_store_orders_waiting{_OF_PAIR}"),)),
        Panel("Free on the disk", (("{{instance}}", f"bstar_store_disk_free_bytes{_OF_PAIR}"),), "bytes"),
        Panel("The store's files", (("{{instance}}", f"bstar_store_file_bytes{_OF_PAIR}"),), "bytes"),
        Panel(
            "Bodies and answers, of what may be held",
            (("{{instance}}", f"bstar_store_bytes{_OF_PAIR} / bstar_store_bytes_max{_OF_PAIR}"),),
            "percentunit",
        ),
        Panel("Damaged records", (("{{instance}}", f"bstar_store_damaged{_OF_PAIR}"),)),
    ),
)

DASHBOARDS: Final = (PAIR, SERVICES, NODES, STORE)
# A failover, as Grafana marks it in every panel.
FAILOVERS: Final = f"increase(bstar_activations_total{_OF_PAIR}[1m]) > 0"
_PAIRS, _NODES = "label_values(bstar_active, pair)", 'label_values(bstar_active{pair=~"$pair"}, instance)'


def generate(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    model = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["bstar"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "annotations": {
            "list": [
                {
                    "name": "Failovers",
                    "datasource": _SOURCE,
                    "enable": True,
                    "iconColor": "orange",
                    "expr": FAILOVERS,
                    "step": "15s",
                    "titleFormat": "{{instance}} became active",
                    "tagKeys": "pair",
                }
            ]
        },
        "links": [
            {"type": "dashboards", "tags": ["bstar"], "title": "bstar", "asDropdown": True, "keepTime": True,
             "includeVars": True}
        ],
        "panels": list(_laid_out(dashboard.panels)),
    }  # fmt: skip
    return json.dumps(model, indent=1, ensure_ascii=False) + "\n"


def files() -> dict[str, Dashboard]:
    """The dashboards by the names of their files."""
    return {f"{FOLDER}/{each.uid}.json": each for each in DASHBOARDS}


def queries() -> Iterator[tuple[str, str]]:
    """Every query with the place where it stands, annotations and recorded names included."""
    yield "annotations: Failovers", FAILOVERS
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for _, query in panel.queries:
                yield f"{dashboard.title}: {panel.title}", query


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    asked = [("pair", _PAIRS)] + [("instance", _NODES)] * dashboard.is_by_node
    for name, query in asked:
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        }


def _laid_out(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    x = y = 0
    row_height = 0
    for number, panel in enumerate(panels, start=1):
        is_stat = panel.kind == "stat"
        width, height = (_WIDTH // 2, _STAT_HEIGHT) if is_stat else (_WIDTH, _HEIGHT)
        if x + width > _COLUMNS:
            x, y = 0, y + row_height
            row_height = 0
        row_height = max(row_height, height)
        yield _panel(panel, number, {"x": x, "y": y, "w": width, "h": height})
        x += width


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    named = re.findall(r"\bbstar_\w+", panel.queries[0][1])
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": next((_MEANINGS[name] for name in named if name in _MEANINGS), ""),
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }
