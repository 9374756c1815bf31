"""Trying what the credentials at hand may do, place by place, against what they should.

Nothing is left behind but, where an identity may not delete, one small object under
``progress/.probe/`` of the store. What each identity may is said by `access`.
"""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from wsdata.access import DELETE, GRANTS, IDENTITIES, READ, TRANSCODES, WRITE, grants_of
from wsdata.deployment import Deployment
from wsdata.errors import ObjectMissing, StoreDenied, StoreError, WsdataError
from wsdata.s3_client import IDENTITY_ENV, S3Bucket, parse_s3_address
from wsdata.s3_store import S3Store

PROBES = {"store": "progress/.probe/", "landing": ".probe/"}
SEALED = ("raw/", "sidecars/", "training/", "")  # where what is forbidden is tried
MAX_TRIES = 4  # about half a second: who checks does not want to wait for a wrong address


@dataclass(kw_only=True, slots=True)
class Trial:
    """What was found of one place; None where it could not be told.

    Attributes:
        place: ``store``, ``vault``, ``landing`` or ``catalog``.
        address: Where it is.
        is_reachable: Whether it answers.
        may_read: Whether bytes of objects are given.
        may_write: Whether objects may be put.
        keeps_first: Whether a put of a key that is taken is refused, as all else relies on.
        faults: What is wrong, and what to do.
        notes: What else there is to know.
    """

    place: str
    address: str
    is_reachable: bool = False
    may_read: bool | None = None
    may_write: bool | None = None
    keeps_first: bool | None = None
    faults: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def default_identity() -> str:
    """The identity that the environment names, or the pipeline's."""
    return os.environ.get(IDENTITY_ENV, "pipeline")


def check_access(deployment: Deployment, identity: str) -> list[Trial]:
    """Try all places of a deployment.

    Args:
        deployment: The deployment.
        identity: Which of IDENTITIES the credentials at hand should be.

    Raises:
        ValueError: Another identity.
    """
    if identity not in IDENTITIES:
        raise ValueError(f"identity {identity!r}: expected one of {', '.join(IDENTITIES)}")
    places = {
        "store": deployment.store,
        "vault": deployment.vault,
        "landing": deployment.landing,
    }
    trials = [
        try_place(place, address, identity, reads_transcodes=deployment.trainers_read_transcodes)
        for place, address in places.items()
    ]
    if identity == "pipeline":
        trials.append(try_catalog(deployment))
    return trials


def try_catalog(deployment: Deployment) -> Trial:
    """Open the ledger, and ask for its newest commit."""
    trial = Trial(place="catalog", address=deployment.catalog)
    try:
        trial.notes.append(f"newest commit {deployment.open_ledger().seq}")
    except (WsdataError, ValueError) as error:
        trial.faults.append(str(error))
    else:
        trial.is_reachable = trial.may_read = True
    return trial


def try_place(place: str, address: str, identity: str, *, reads_transcodes: bool = False) -> Trial:
    """Try one place, and compare what may be done with what should be; see `grants_of`."""
    trial = Trial(place=place, address=address)
    if "://" in address and not address.startswith(("s3://", "file://")):
        trial.faults.append(f"address {address!r}: expected s3://bucket/prefix or file:///folder")
        return trial
    if not address.startswith("s3://"):
        _try_folder(trial, Path(address.removeprefix("file://")))
        return trial
    bucket = S3Bucket(parse_s3_address(address), max_tries=MAX_TRIES)
    all_grants = grants_of(identity, reads_transcodes=reads_transcodes)
    grants = [grant for grant in all_grants if grant.place == place]
    readable = [p for grant in grants if set(READ) <= set(grant.actions) for p in grant.prefixes]
    writable = [p for grant in grants if set(WRITE) <= set(grant.actions) for p in grant.prefixes]
    try:
        _try_reading(trial, bucket, readable)
        _try_writing(trial, bucket, identity, writable)
    except StoreError as error:
        trial.faults.append(str(error))
        return trial
    trial.is_reachable = True
    _compare(trial, identity, may_read=bool(readable), may_write=bool(writable))
    if identity == "trainer" and place == "store":
        _try_beyond(trial, bucket, reads_transcodes=reads_transcodes)
    return trial


def _try_folder(trial: Trial, root: Path) -> None:
    there = next(path for path in (root, *root.absolute().parents) if path.exists())
    trial.is_reachable = there.is_dir()
    trial.may_read, trial.may_write = os.access(there, os.R_OK), os.access(there, os.W_OK)
    trial.keeps_first = True  # a link is made where nothing is, or not at all
    trial.notes.append("on a disk: who may do what is for the system's users and groups to say")
    if not (trial.may_read and trial.may_write and trial.is_reachable):
        trial.faults.append(f"{there} cannot be read and written by this user: change its mode")


def _try_reading(trial: Trial, bucket: S3Bucket, readable: list[str]) -> None:
    """Try an object under each prefix; the worst that is found is told."""
    found = {may_read(bucket, prefix, has_names=bool(readable)) for prefix in readable or SEALED}
    for worst in (False, True) if readable else (True, False):
        if worst in found:
            trial.may_read = worst
            return
    trial.notes.append("nothing lies there to try reading on")


def may_read(bucket: S3Bucket, prefix: str, *, has_names: bool = False) -> bool | None:
    """Whether an object under a prefix is given; None where none is there to try on.

    Args:
        bucket: Where.
        prefix: Of keys.
        has_names: Whether who may read there may list names too. Then who may not list may not
            read: an object that is missing does not tell, since it is missing for all.

    Raises:
        StoreError: The bucket does not answer, or is not there.
    """
    start = len(bucket.address.prefix)
    try:
        page = next(bucket.pages(prefix, limit=1))
        names = [entry["Key"][start:] for entry in page.get("Contents", [])]
    except StoreDenied:
        if has_names:
            return False
        names = []
    try:
        for key in names or [f"{prefix}.probe"]:
            if bucket.head(key).code:
                return None
    except StoreDenied:
        return False
    return True


def _try_writing(trial: Trial, bucket: S3Bucket, identity: str, writable: list[str]) -> None:
    if PROBES.get(trial.place, "-").startswith(tuple(writable)):
        _try_probe(trial, S3Store(bucket), identity)
        return
    found = {_may_begin_upload(bucket, f"{prefix}.probe") for prefix in writable or SEALED}
    trial.may_write = False not in found if writable else True in found


def _may_begin_upload(bucket: S3Bucket, key: str) -> bool:
    """Whether an object may be put, without putting one: an upload is begun and given up."""
    try:
        begun = bucket.call("create_multipart_upload", key)
        upload_id = begun.response["UploadId"]
        bucket.call("abort_multipart_upload", key, accept=("404",), UploadId=upload_id)
    except StoreDenied:
        return False
    return True


def _try_probe(trial: Trial, store: S3Store, identity: str) -> None:
    """Put, put again, get and, where that is granted, delete a small object."""
    may_delete = any(
        grant.place == trial.place and set(DELETE) <= set(grant.actions)
        for grant in GRANTS[identity]
    )
    key = f"{PROBES[trial.place]}{secrets.token_hex(8) if may_delete else identity}"
    body = identity.encode()
    try:
        store.put(key, body)
        trial.may_write = True
        trial.keeps_first = not store.put(key, body + b"2") and store.get(key) == body
        trial.may_read = trial.may_read is not False
        if may_delete:
            store.delete(key)
            if store.size(key) is not None:
                trial.faults.append(f"{key} is still there after it was deleted")
    except ObjectMissing as error:
        trial.faults.append(f"what was put cannot be read: {error}")
    except StoreDenied as error:
        trial.may_write = bool(trial.may_write)
        trial.faults.append(str(error))


def _compare(trial: Trial, identity: str, *, may_read: bool, may_write: bool) -> None:
    told = f"`wsdata deployment policy {identity}` prints the policy to put in force"
    if trial.may_read and not may_read:
        sealed = "the vault is not sealed: " if trial.place == "vault" else ""
        trial.faults.append(f"{sealed}{identity} can read the {trial.place}, and must not: {told}")
    if trial.may_read is False and may_read:
        trial.faults.append(f"{identity} cannot read the {trial.place}: {told}")
    if trial.may_write and not may_write:
        trial.faults.append(f"{identity} can write to the {trial.place}, and must not: {told}")
    if trial.may_write is False and may_write:
        trial.faults.append(f"{identity} cannot write to the {trial.place}: {told}")
    if trial.keeps_first is False:
        trial.faults.append(
            "the server takes a second put of a key though If-None-Match forbids it: use one "
            "with conditional puts (Amazon S3, Ceph, MinIO)"
        )


def _try_beyond(trial: Trial, bucket: S3Bucket, *, reads_transcodes: bool) -> None:
    """A trainer reads what is ready for training alone, and transcodes where that is stated."""
    told = "`wsdata deployment policy trainer` prints the policy to put in force"
    for prefix in ("raw/", "derived/frame_packs/"):
        if may_read(bucket, prefix):
            trial.faults.append(f"trainer can read {prefix} of the store, and must not: {told}")
    if reads_transcodes:
        return
    if any(may_read(bucket, prefix) for prefix in TRANSCODES.prefixes):
        trial.faults.append(
            f"trainer can read transcodes under derived/ of the store, and must not: {told}; or "
            "state trainers_read_transcodes = true in deployment.toml, where they are to decode "
            "them"
        )
