"""Quality control of captions: what is wrong with one text, and with a captioner as a whole.

Flags are attributes of a caption; nothing here drops a clip. `caption_faults` is the verdict
that an asset check asks for, per captioner version, so that a captioner that writes mojibake
for one language is seen here and not in a loss curve.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.digest import canonical_json
from wsdata.label.describer import plain_name
from wsdata.label.engine import WORD_BOUNDS
from wsdata.orders import Input, Step, StepResult, StepRun

MODEL_VERSION = "caption-qc-1"

CONFIDENT_TAG_SHARE = 0.5
_MIN_ASCII_SHARE = 0.9  # the captioners write English
_MAX_REPEATED_SHARE = 0.3  # of a text's four-word runs that occur more than once
_MAX_FAILED_SHARE, _MAX_FLAGGED_SHARE = 0.05, 0.02
_MIN_AGREEMENT, _MIN_AGREEMENT_ROWS = 0.25, 8
_MAX_SAME_SHARE, _MIN_SAME_ROWS = 0.2, 8

# UTF-8 read as a one-byte code page gives a capital with tilde, circumflex or the like, followed
# by a character of the C1 range or of the Latin-1 symbols; as cp1252 also by punctuation.
_TAIL = (
    "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014"
    "\u2018-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
)
_MIS_DECODED = re.compile(f"[\u00c2-\u00df]{_TAIL}|[\u00e0-\u00ef]{_TAIL}{{2}}|\u00f0{_TAIL}{{3}}")
_NEVER = re.compile("[\ufffd\u0000-\u0008\u000b\u000c\u000e-\u001f\u0080-\u009f\ue000-\uf8ff]")


def has_mojibake(text: str) -> bool:
    """Whether a text holds characters that only a wrong decoding leaves behind."""
    return bool(_NEVER.search(text) or _MIS_DECODED.search(text))


def has_repetition(text: str) -> bool:
    """Whether a text goes round in circles, as a language model that lost its way does.

    Either one word stands three times in a row, or three tenths of the four-word runs occur
    more than once.
    """
    words = re.findall(r"[\w']+", text.lower())
    if any(a == b == c for a, b, c in zip(words, words[1:], words[2:], strict=False)):
        return True
    runs = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    total = sum(runs.values())
    repeated = sum(count for count in runs.values() if count > 1)
    return total >= 8 and repeated > _MAX_REPEATED_SHARE * total


def ascii_share(text: str) -> float:
    """Share of ASCII characters, in [0, 1]; 1.0 for an empty text."""
    return sum(character.isascii() for character in text) / len(text) if text else 1.0


def tag_agreement(text: str, tags: Iterable[tuple[str, float]]) -> float | None:
    """Share of the confident tags that a text mentions, by their last word.

    Returns:
        A share in [0, 1], or None where no tag is confident enough to ask for.
    """
    said = {word.rstrip("s") for word in re.findall(r"\w+", text.lower())}
    confident = [plain_name(name) for name, share in tags if share >= CONFIDENT_TAG_SHARE]
    if not confident:
        return None
    hits = sum(name.lower().replace("-", " ").split()[-1].rstrip("s") in said for name in confident)
    return hits / len(confident)


def caption_flags(text: str, variant: str) -> list[str]:
    """What is wrong with one text, sorted: mojibake, repetition, too_short, too_long, not_ascii."""
    low, high = WORD_BOUNDS[variant]
    num_words = len(text.split())
    # quoted words are what the picture says, in whatever script it says it
    own_words = re.sub(r'"[^"]*"', "", text)
    found = {
        "mojibake": has_mojibake(text),
        "repetition": has_repetition(own_words),
        "too_short": num_words < low,
        "too_long": num_words > high,
        "not_ascii": ascii_share(own_words) < _MIN_ASCII_SHARE,
    }
    return sorted(name for name, is_so in found.items() if is_so)


def caption_faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdict on a set of captions, per captioner version.

    Args:
        rows: Dicts with ``captioner_version``, ``variant``, ``status`` and ``text``, and where
            known ``agreement``: captions as they lie in the table, joined with their control.

    Returns:
        One line per fault, naming version, share and bound; none where all is well.
    """
    faults: list[str] = []
    for version in sorted({row["captioner_version"] for row in rows}):
        of_version = [row for row in rows if row["captioner_version"] == version]
        made = [row for row in of_version if row["status"] == "ok"]
        failed = len(of_version) - len(made)
        if failed > _MAX_FAILED_SHARE * len(of_version):
            faults.append(
                f"{version}: {failed} of {len(of_version)} captions failed, allowed is "
                f"{_MAX_FAILED_SHARE:.0%}: see their reasons, then run the step again"
            )
        faults += _flag_faults(version, made)
        faults += _distribution_faults(version, made)
    return faults


def _flag_faults(version: str, made: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = Counter(flag for row in made for flag in caption_flags(row["text"], row["variant"]))
    return [
        f"{version}: {count} of {len(made)} captions are flagged {flag!r}, allowed is "
        f"{_MAX_FLAGGED_SHARE:.0%}"
        for flag, count in sorted(counts.items())
        if count > _MAX_FLAGGED_SHARE * len(made)
    ]


def _distribution_faults(version: str, made: Sequence[Mapping[str, Any]]) -> list[str]:
    faults: list[str] = []
    for variant in sorted({row["variant"] for row in made}):
        texts = Counter(row["text"] for row in made if row["variant"] == variant)
        total = sum(texts.values())
        most = max(texts.values())
        if total >= _MIN_SAME_ROWS and most > _MAX_SAME_SHARE * total:
            faults.append(
                f"{version}: {most} of {total} {variant} captions are one and the same text, "
                f"allowed is {_MAX_SAME_SHARE:.0%}"
            )
    agreements = [row["agreement"] for row in made if row.get("agreement") is not None]
    if len(agreements) >= _MIN_AGREEMENT_ROWS:
        mean = sum(agreements) / len(agreements)
        if mean < _MIN_AGREEMENT:
            faults.append(
                f"{version}: captions mention {mean:.0%} of what the image network is sure of, "
                f"expected at least {_MIN_AGREEMENT:.0%}"
            )
    return faults


def run(run: StepRun) -> StepResult:
    """Check every caption of a drop."""
    captions = run.read("captions")
    tags = {
        row["clip_id"]: [(name, share) for name, share in json.loads(row["tags_json"])]
        for row in run.read("clip_embeddings").select("clip_id", "tags_json").to_dicts()
    }
    records = [_control(row, tags.get(row["clip_id"], [])) for row in captions.to_dicts()]
    rows = tables.rows_of("label_qc", records)
    joined = captions.join(
        rows.select("clip_id", "variant", "agreement", "flags_json"), on=["clip_id", "variant"]
    ).to_dicts()
    faults = caption_faults(joined)
    return StepResult(
        tables={"label_qc": rows},
        metrics={"captions": captions.height, "passed": int(rows["passed"].sum())},
        display={
            "label_qc": {
                "captions": {"type": "int", "raw_value": captions.height},
                "passed": {"type": "int", "raw_value": int(rows["passed"].sum())},
                "distribution": {"type": "md", "raw_value": _distribution_table(joined)},
                "faults": {
                    "type": "md",
                    "raw_value": "\n".join(f"- {fault}" for fault in faults) or "none",
                },
            }
        },
    )


def _control(caption: Mapping[str, Any], tags: list[tuple[str, float]]) -> dict[str, Any]:
    is_made = caption["status"] == "ok"
    flags = caption_flags(caption["text"], caption["variant"]) if is_made else ["failed"]
    agreement = tag_agreement(caption["text"], tags) if is_made else None
    return {
        "clip_id": caption["clip_id"],
        "captioner_version": caption["captioner_version"],
        "variant": caption["variant"],
        "passed": not flags,
        "flags_json": canonical_json(flags),
        "agreement": None if agreement is None else round(agreement, 4),
    }


def _distribution_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| captioner | variant | captions | words min / median / max | ASCII | flagged |",
        "|---|---|---|---|---|---|",
    ]
    for version, variant in sorted({(row["captioner_version"], row["variant"]) for row in rows}):
        chosen = [
            row for row in rows if (row["captioner_version"], row["variant"]) == (version, variant)
        ]
        texts = [row["text"] for row in chosen if row["status"] == "ok"]
        words = sorted(len(text.split()) for text in texts) or [0]
        share = pl.Series([ascii_share(text) for text in texts] or [1.0]).mean()
        flagged = sum(row["flags_json"] != "[]" for row in chosen)
        lines.append(
            f"| {version} | {variant} | {len(chosen)} | {words[0]} / {words[len(words) // 2]} / "
            f"{words[-1]} | {share:.1%} | {flagged} |"
        )
    return "\n".join(lines)


STEP = Step(
    stage="label",
    name="label_qc",
    function="wsdata.label.qc:run",
    code_version=MODEL_VERSION,
    partition="drop",
    assets={"label_qc": ("label_qc",)},
    inputs=(Input(table="captions"), Input(table="clip_embeddings")),
    description=(
        "Faults of every caption: wrong decoding, repetition, length, language, and whether it "
        "mentions what the image network is sure of. Flags only; nothing is dropped."
    ),
)
