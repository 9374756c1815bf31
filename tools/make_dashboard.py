"""Writes the chart's Grafana dashboard, helm/dashboards/wsdata.json, from dashboard.toml.

    python tools/make_dashboard.py [--check]

The JSON is what Grafana imports; the TOML is what people edit. A test holds every metric named
there to what `wsdata.observability` and `resources.exporter` expose.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

DECLARATION = Path(__file__).with_name("dashboard.toml")
TARGET = Path(__file__).resolve().parents[1] / "helm" / "dashboards" / "wsdata.json"
SCHEMA_VERSION = 42  # of Grafana 12.2; those before it read the same panels
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NUM_COLUMNS = 24
SIZES = {"stat": (3, 4)}  # columns and rows of a kind of panel; of the others:
SIZE = (8, 8)
INSTANT = ("table", "bargauge")  # kinds that show the present alone
VARIABLES = (("pool", "wsdata_pool_slots"), ("source", "wsdata_assets"))
LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {"reduceOptions": LAST, "colorMode": "value", "graphMode": "area"},
    "bargauge": {"reduceOptions": LAST, "orientation": "horizontal", "displayMode": "basic"},
    "table": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"],
                   "sortBy": "Last *", "sortDesc": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}  # fmt: skip
HIDDEN = ("Time", "__name__", "instance", "job", "pod", "endpoint", "container", "service")


def dashboard(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in declared["rows"]:
        place = {"x": 0, "y": y, "w": NUM_COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row["title"], "collapsed": False,
             "gridPos": place, "panels": []}
        )  # fmt: skip
        x, y, height = 0, y + 1, 0
        for panel in row["panels"]:
            width, height = SIZES.get(panel.get("kind", ""), SIZE)
            width = panel.get("width", width)
            if x + width > NUM_COLUMNS:
                x, y = 0, y + height
            place = {"x": x, "y": y, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            x += width
        y += height
    return {
        "uid": "wsdata",
        "title": "wsdata",
        "description": "Throughput, queues, kill and quarantine rates, workers, store, captioner.",
        "tags": ["wsdata"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *(_variable(*each) for each in VARIABLES)]},
        "panels": panels,
    }


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    made = {
        "type": kind,
        "title": panel["title"],
        "description": panel["said"],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _defaults(kind, panel), "overrides": []},
        "options": OPTIONS[kind],
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "editorMode": "code",
                "range": kind not in INSTANT,
                "instant": kind in INSTANT,
                "format": "table" if kind == "table" else "time_series",
            }
            for at, (query, legend) in enumerate(panel["queries"])
        ],
    }
    if kind == "table":
        hide = {"id": "organize", "options": {"excludeByName": dict.fromkeys(HIDDEN, True)}}
        made["transformations"] = [hide]
    return made


def _defaults(kind: str, panel: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel["unit"], "min": 0}
    if "max" in panel:
        defaults["max"] = panel["max"]
    if kind == "timeseries":
        custom: dict[str, Any] = {"lineWidth": 1, "showPoints": "never", "spanNulls": True}
        custom["fillOpacity"] = 40 if panel.get("is_stacked") else 8
        if panel.get("is_stacked"):
            custom["stacking"] = {"mode": "normal", "group": "A"}
        if panel.get("is_log"):
            custom["scaleDistribution"] = {"type": "log", "log": 10}
            del defaults["min"]
        defaults["custom"] = custom
    if kind == "stat":
        steps = [{"color": "green", "value": None}]
        steps += [
            {"color": color, "value": panel[color]} for color in ("yellow", "red") if color in panel
        ]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
        "current": {}, "hide": 0, "includeAll": False, "multi": False, "refresh": 1, "regex": "",
    }  # fmt: skip


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": label}, "includeAll": True, "allValue": ".*",
        "multi": True, "current": {"text": ["All"], "value": ["$__all"]}, "hide": 0, "refresh": 2,
        "sort": 1, "regex": "", "options": [],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Write the file, or with ``--check`` exit 1 where it is not what would be written."""
    parser = argparse.ArgumentParser(description="Write helm/dashboards/wsdata.json.")
    parser.add_argument("--check", action="store_true", help="write nothing, tell a difference")
    args = parser.parse_args(arguments)
    declared = tomllib.loads(DECLARATION.read_text(encoding="utf-8"))
    text = json.dumps(dashboard(declared), indent=1) + "\n"
    if args.check:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
