"""The dashboard and the alerts name only what is really exposed."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import dagster as dg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from resources.exporter import Watched, build_exporter
from tools.make_dashboard import main as make_dashboard
from wsdata.observability.killrates import STEP as KILL_RATES
from wsdata.observability.worker_metrics import serving
from wsdata.store import FolderStore
from wsdata_tests.lifecycle import fabricated
from wsdata_tests.lifecycle.trained import train

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "helm" / "dashboards" / "wsdata.json"
RULES = ROOT / "helm" / "rules" / "wsdata.rules.yaml"
NAME = re.compile(r"\b(?:wsdata_|vllm:|kube_)[a-zA-Z0-9_:]+")
LABELS = re.compile(r"\bby\s*\(([^)]*)\)|\{([^}]*)\}")
OF_VLLM = {  # its documentation's names: metrics of the engine that this chart can start
    "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_bucket",
    "vllm:kv_cache_usage_perc",
}  # fmt: skip


@dg.asset(partitions_def=dg.DynamicPartitionsDefinition(name="drops"))
def clips():
    """Cuts nothing."""


@dg.asset_check(asset=clips)
def whole():
    """Passes."""
    return dg.AssetCheckResult(passed=True)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """{sample name: its labels}, scraped from a worker and from an exporter with all series."""
    folder = tmp_path_factory.mktemp("exposed")
    text = [_worker(folder)]
    home = fabricated.fabricate(folder / "home")
    for drop in (fabricated.A, fabricated.B):
        home.run_step(KILL_RATES, drop)
    train(home, (0, 20), (10, 60))
    defs = dg.Definitions(assets=[clips], asset_checks=[whole])
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions("drops", ["a"])
        instance.event_log_storage.set_concurrency_slots("cpu", 1)
        defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, partition_key="a"
        )
        exporter = build_exporter(instance, home.ledger, home.store, Watched.of(defs))
        exporter.turn()
        text.append(exporter.metrics()[2].decode())
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families("".join(text)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _worker(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving("label", "captions", port, "vlm", address="127.0.0.1") as watch:
        store = watch.metered(FolderStore(folder / "store"))
        store.put("a", b"1")
        store.get("a")
        watch(1, 2, "x")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()


def panels():
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions():
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def test_the_dashboard_is_what_its_declaration_makes():
    assert make_dashboard(["--check"]) == 0


def test_every_metric_of_a_panel_or_alert_is_exposed(exposed):
    named = {name: title for title, query in expressions() for name in NAME.findall(query)}
    assert len(named) > 30
    unknown = {name: named[name] for name in set(named) - set(exposed) - OF_VLLM}
    assert not unknown


def test_every_label_of_a_panel_or_alert_is_one_of_its_metrics(exposed):
    for title, query in expressions():
        known = set().union(*(exposed.get(name, {"le"}) for name in NAME.findall(query)))
        for by, where in LABELS.findall(query):
            used = re.findall(r"\w+", by) or re.findall(r"(\w+)\s*=", where)
            assert set(used) <= known, (title, used)


def test_every_metric_of_ours_is_shown_or_alarmed(exposed):
    """What nobody looks at should not be told, but for what every process tells of itself."""
    shown = {name for _, query in expressions() for name in NAME.findall(query)}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed}
    seen = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    rest = {name for name in families - seen if "worker_process" not in name}
    assert rest <= {"wsdata_units_total", "wsdata_ledger_seq", "wsdata_catalog_objects"}


def test_panels_say_what_they_show():
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))


def test_panels_lie_beside_each_other():
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))


def test_the_dashboard_names_no_data_source_of_its_own():
    def sources(value):
        if isinstance(value, dict):
            if "datasource" in value:
                yield value["datasource"]
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                yield from sources(each)

    found = list(sources(json.loads(DASHBOARD.read_text())))
    assert len(found) > 40
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in found)


def test_every_alert_says_what_to_do():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert set(rule["annotations"]) == {"summary", "description"}
