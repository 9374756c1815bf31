"""Fingerprints: what every raw asset looks and sounds like, and what kind of file it is.

One sandboxed child per raw asset probes it, prints its key frames and its main sound track.
Vault members are printed by `vault_prints`; which prints belong together is told by `neardup`.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wsdata import tables
from wsdata.ids import raw_key
from wsdata.media.jobs import JobReport
from wsdata.media.keyframes import SAMPLING_VERSION
from wsdata.media.phash import HASH_VERSION
from wsdata.media.sandbox import SandboxPool, run_job
from wsdata.media.sound_print import SOUND_VERSION, require_chromaprint
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.store import BlobStore, FolderStore
from wsdata.units import in_order

METHOD = f"{SAMPLING_VERSION}.{HASH_VERSION}"
MAX_KEYFRAMES = 120
_MIN_WALL_S = 120.0
_WORST_BYTES_PER_S = 200_000  # a decode slower than this is a hang

STEP = Step(
    stage="ingest",
    name="fingerprints",
    function="wsdata.ingest.fingerprint:run",
    code_version="fingerprint-2",
    partition="drop",
    assets={"fingerprints": ("fingerprints", "probes", "audio_prints")},
    inputs=(Input(table="raw_assets"),),
    pool="nvdec",
    units_of="raw_assets",
    params_of=lambda _: {
        "method": METHOD,
        "max_keyframes": MAX_KEYFRAMES,
        "sound_version": SOUND_VERSION,
    },
    settings_of=lambda deployment, _: {
        "num_threads": deployment.num_threads,
        "sandbox_minimum": deployment.sandbox_minimum,
    },
    description="Probe of every raw asset, perceptual hashes of its key frames, mirrored too, and "
    "the print of its sound.",
)


@contextmanager
def raw_file(store: BlobStore, key: str) -> Iterator[Path]:
    """Lend a raw object as a local file: the store's own where it is a folder, else a copy.

    Raises:
        ObjectMissing: The store has no such object.
    """
    if isinstance(store, FolderStore):
        if store.size(key) is None:
            store.get(key)  # raises, saying what to do
        yield store.path_of(key)
        return
    with tempfile.TemporaryDirectory(prefix="wsdata-raw-") as folder:
        path = Path(folder) / "raw"
        store.fetch(key, path)
        yield path


def print_file(
    path: Path,
    out_dir: Path,
    *,
    minimum_level: str,
    is_dense: bool = False,
    num_color: int = 0,
    has_sound: bool = False,
    runner: Callable[..., JobReport] = run_job,
) -> tuple[dict[str, Any], JobReport]:
    """Probe and print one file in the sandbox; one that ends badly is tried once more.

    Args:
        path: The file.
        out_dir: Where the pictures asked for are left.
        minimum_level: The sandbox level that the deployment demands.
        is_dense: Whether to print four frames a second whatever the key frames.
        num_color: How many of the printed frames to leave as pictures.
        has_sound: Whether to print the main sound track too.
        runner: What runs the job; called as `media.sandbox.run_job` is.

    Returns:
        ``probe``, ``prints``, ``colors`` and ``sound`` as `media.keyframes.keyframes_job` gives
        them, the probe with status ``failed`` where the child gave none; and the child's report.

    Raises:
        SandboxError: Sound is wanted, and the library that prints it is not here.
    """
    if has_sound:
        require_chromaprint()
    wall_s = _MIN_WALL_S + path.stat().st_size / _WORST_BYTES_PER_S
    args = {
        "max_keyframes": MAX_KEYFRAMES,
        "is_dense": is_dense,
        "num_color": num_color,
        "has_sound": has_sound,
    }

    def attempt() -> JobReport:
        return runner(
            "wsdata.media.keyframes:keyframes_job",
            args,
            source=path,
            out_dir=out_dir,
            wall_s=wall_s,
            minimum_level=minimum_level,
        )

    report = attempt()
    if report.status not in ("ok", "failed"):
        report = attempt()
    if report.result is not None:
        return report.result, report
    probe = {"status": "failed", "reason": f"{report.status}: {report.detail}"}
    return {"probe": probe, "prints": [], "colors": [], "sound": None}, report


def _print_asset(run: StepRun, asset_id: str, runner: Callable[..., JobReport]) -> dict[str, Any]:
    with (
        raw_file(run.store, raw_key(asset_id)) as path,
        tempfile.TemporaryDirectory(prefix="wsdata-prints-") as folder,
    ):
        found, _ = print_file(
            path,
            Path(folder),
            minimum_level=run.settings["sandbox_minimum"],
            has_sound=True,
            runner=runner,
        )
    return found


def _print_all(run: StepRun, asset_ids: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each asset's findings, in the order given, from as many sandboxes as workers."""
    workers = max(1, int(run.settings.get("num_threads", 1)))

    def find(asset_id: str) -> dict[str, Any]:
        return run.unit(asset_id, lambda: _print_asset(run, asset_id, pool.run), amounts=_video_s)

    with SandboxPool(workers) as pool:
        yield from zip(asset_ids, in_order(find, asset_ids, workers), strict=True)


def _video_s(found: dict[str, Any]) -> dict[str, float]:
    probe = found["probe"]
    is_video = probe.get("media_kind") == "video"
    return {"media_s": (probe.get("duration_s") or 0.0) if is_video else 0.0}


def _bytes(text: str | None) -> bytes | None:
    return bytes.fromhex(text) if text else None


def print_rows(asset_id: str, prints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn a child's prints into rows: hashes as bytes, numbered in order of time."""
    return [
        {
            "asset_id": asset_id,
            "frame_index": index,
            "time_s": one["time_s"],
            "hash": bytes.fromhex(one["hash"]),
            "mirror_hash": bytes.fromhex(one["mirror_hash"]),
            "quality": one["quality"],
            "core_hash": _bytes(one["core_hash"]),
            "core_mirror_hash": _bytes(one["core_mirror_hash"]),
        }
        for index, one in enumerate(prints)
    ]


def sound_rows(asset_id: str, sound: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Turn a child's print of sound into a row of ``audio_prints``; none where there is none."""
    if sound is None:
        return []
    codes = bytes.fromhex(sound["codes"])
    start_s = sound["start_s"]
    return [{"asset_id": asset_id, "start_s": start_s, "codes": codes, "version": SOUND_VERSION}]


def run(run: StepRun) -> StepResult:
    """Probe and print every raw asset of a drop that is not in the vault.

    Rows: ``probes``, one per asset, of files that are empty or unreadable too; ``fingerprints``,
    one per printed frame; ``audio_prints``, one per asset whose sound gave a print.
    """
    rows = run.read("raw_assets")
    asset_ids = sorted(filter(run.is_mine, rows.filter(~rows["in_vault"])["asset_id"]))
    probes: list[dict[str, Any]] = []
    prints: list[dict[str, Any]] = []
    sounds: list[dict[str, Any]] = []
    for done, (asset_id, found) in enumerate(_print_all(run, asset_ids), 1):
        probes.append({"asset_id": asset_id, **found["probe"]})
        prints += [{**row, "method": METHOD} for row in print_rows(asset_id, found["prints"])]
        sounds += sound_rows(asset_id, found["sound"])
        run.progress(done, len(asset_ids), f"{asset_id[:12]} {found['probe']['status']}")
    return StepResult(
        tables={
            "probes": tables.rows_of("probes", probes),
            "fingerprints": tables.rows_of("fingerprints", prints),
            "audio_prints": tables.rows_of("audio_prints", sounds),
        },
        metrics={
            "num_assets": len(asset_ids),
            "num_prints": len(prints),
            "num_sound_prints": len(sounds),
        },
        display={"fingerprints": _display(probes, prints, len(sounds))},
    )


def _display(
    probes: list[dict[str, Any]], prints: list[dict[str, Any]], num_sounds: int
) -> dict[str, Any]:
    lines = ["| asset | kind | codec | size | seconds | frames/s | status |", "|" + "---|" * 7]
    for row in probes[:50]:
        size = f"{row['width_px']}x{row['height_px']}" if row.get("width_px") else ""
        rate = f"{row['source_fps']:.2f}" if row.get("source_fps") else ""
        rate += " (variable)" if row.get("is_vfr") else ""
        told = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        codec = row.get("codec") or row.get("audio_codec") or ""
        lines.append(
            f"| {row['asset_id'][:12]} | {row.get('media_kind') or ''} | {codec} | {size} "
            f"| {row.get('duration_s') or 0:.2f} | {rate} | {told} |"
        )
    unread = sum(row["status"] != "ok" for row in probes)
    return {
        "probed": {"type": "int", "raw_value": len(probes)},
        "empty or unreadable": {"type": "int", "raw_value": unread},
        "printed frames": {"type": "int", "raw_value": len(prints)},
        "printed sound tracks": {"type": "int", "raw_value": num_sounds},
        "files": {"type": "md", "raw_value": "\n".join(lines)},
    }
