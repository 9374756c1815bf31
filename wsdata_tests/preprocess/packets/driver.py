"""One drop, decoded once; then gates and filters change. Says what each change cost, as JSON.

Started by `test_no_decode` with `sitecustomize` on the path of this process and its children.
"""

import dataclasses
import json
import sys
from pathlib import Path

from wsdata import tables
from wsdata.catalog.presence import finished
from wsdata.digest import sha256_bytes
from wsdata.errors import NotReady
from wsdata.ids import raw_key
from wsdata.media import bwrap, sandbox
from wsdata.orders import Step, build_order, execute
from wsdata.preprocess.filters import overlay, text_tags
from wsdata.recipe import Gates, Recipe
from wsdata.steps import STEPS
from wsdata_tests import synthetic
from wsdata_tests.lifecycle.fabricated import Home
from wsdata_tests.preprocess.packets.sitecustomize import total

DROP = "licensed.acme.20261101.001"
SEEN = (
    "ingest/fingerprints", "preprocess/decode", "preprocess/safety_list_scores",
    "preprocess/technical_scores", "preprocess/overlay_scores", "preprocess/text_tags_scores",
    "preprocess/gates",
)  # fmt: skip
MADE_UP = tuple(  # networks that this is not about
    name for name in tables.FILTERS if f"preprocess/{name}_scores" not in SEEN
)


def _silent(done: int, total: int, note: str) -> None:
    """Take progress, and say nothing."""


class Runs:
    """The steps of one drop in one home."""

    def __init__(self, folder: Path, counts: Path) -> None:
        self.home, self.counts = Home(folder), counts
        self.recipe = Recipe(name="test")
        self.steps: dict[str, Step] = {name: STEPS[name] for name in SEEN}

    def order(self, name: str, *, is_for_work: bool = True):
        return build_order(
            self.steps[name], DROP, ledger=self.home.ledger, deployment=self.home.deployment,
            recipe=self.recipe, is_for_work=is_for_work,
        )  # fmt: skip

    def stale(self) -> list[str]:
        found = []
        for name in SEEN:
            try:
                order = self.order(name, is_for_work=False)
            except NotReady:
                found.append(name)
                continue
            if finished(order, self.home.ledger, self.home.store) is None:
                found.append(name)
        return found

    def run(self, name: str) -> None:
        order = self.order(name)
        step = self.steps[name]
        report = execute(order, step.function, self.home.store, _silent, self.home.ledger)
        self.home.ledger.commit(order, report)

    def work(self) -> dict:
        """Run what is stale until nothing is; say what that was, what it made and decoded."""
        before, objects = total(self.counts), self.objects()
        ran = []
        for name in SEEN:
            if name in self.stale():
                self.run(name)
                ran.append(name)
        now = self.objects()
        return {
            "ran": ran,
            "packets": total(self.counts) - before,
            "made": sorted({key.split("@")[0] for key in now if now[key] != objects.get(key)}),
            "gone": sorted(set(objects) - set(now)),
            "passed": self.home.rows("gates", DROP)["passed"].to_list(),
        }

    def objects(self) -> dict[str, str]:
        refs = self.home.ledger.all_objects()
        return {f"{ref.table}@{ref.version}": ref.sha256 for ref in refs}


def begin(folder: Path, counts: Path) -> Runs:
    """Land one video by hand, and decode and score it."""
    bwrap.ENVIRONMENT["PYTHONPATH"] = f"{Path(__file__).parent}:{bwrap.CODE_ROOT}"
    bwrap.ENVIRONMENT["WSDATA_TEST_PACKETS"] = str(counts)
    sandbox.reachable_level = lambda: "seccomp"  # namespaces of their own see no file of counts
    runs = Runs(folder / "home", counts)
    data = synthetic.make_video(
        folder / "v.mp4", [("bars", 3)], size=(320, 240), audio=None
    ).read_bytes()
    asset_id = sha256_bytes(data)
    runs.home.store.put(raw_key(asset_id), data)
    runs.home.commit(
        DROP,
        {
            "raw_assets": [
                {"asset_id": asset_id, "key": raw_key(asset_id), "size_bytes": len(data),
                 "suffix": ".mp4", "in_vault": False, "num_files": 1}
            ],
            "provenance": [
                {"asset_id": asset_id, "drop": DROP, "path": "v.mp4", "in_vault": False,
                 "source_tier": "licensed", "source": "acme", "license_id": "x",
                 "territory": "world"}
            ],
        },
    )  # fmt: skip
    runs.home.commit(DROP, {"vault_prints": []})
    for name in ("ingest/fingerprints", "preprocess/decode"):
        runs.run(name)
    for name in MADE_UP:
        rows = [
            {"clip_id": clip["clip_id"], "asset_id": clip["asset_id"], "source": "acme",
             "filter": name, "score_name": "nsfw" if name == "safety" else "value", "score": 0.1,
             "model_version": "made-up", "status": "ok"}
            for clip in runs.home.rows("clips", DROP).to_dicts()
        ]  # fmt: skip
        runs.home.commit(DROP, {f"{name}_scores": rows})
    return runs


def main(folder: Path, counts: Path) -> None:
    """First all; then a threshold, a list, a model version and a tag's version change."""
    overlay.NUM_FRAMES = 1  # reading text is what takes long, and not what this is about
    runs = begin(folder, counts)
    first = runs.work()
    told = {"first": {**first, "packets": total(counts)}}
    runs.recipe = Recipe(name="test", gates=Gates(min_duration_s=10.0))
    told["threshold"] = runs.work()
    lists = runs.home.path / "safety_lists"
    lists.mkdir()
    (lists / "police.txt").write_text("ab" * 32 + " one\n")
    told["list"] = runs.work()
    runs.recipe = Recipe(name="test")
    runs.work()
    for module, name in ((overlay, "overlay"), (text_tags, "text_tags")):
        version = f"{module.FILTER.model_version}-next"
        changed = dataclasses.replace(module.FILTER, model_version=version)
        setattr(module, "FILTER", changed)  # noqa: B010
        key = f"preprocess/{name}_scores"
        runs.steps[key] = dataclasses.replace(runs.steps[key], code_version=version)
        told[name] = runs.work()
    overlay._model = None  # from here on text cannot be read
    version = f"{text_tags.FILTER.model_version}-2"
    text_tags.FILTER = dataclasses.replace(text_tags.FILTER, model_version=version)
    key = "preprocess/text_tags_scores"
    runs.steps[key] = dataclasses.replace(runs.steps[key], code_version=version)
    told["tag"] = runs.work()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
