"""Who may do what in the buckets: one table, and the S3 policies that say it.

Four identities, least privilege, told by key prefixes. Who holds the ledger or a Kubernetes token
is said by the chart; that the policies are in force is tried by `wsdata deployment check`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wsdata.s3_client import S3Address, parse_s3_address
from wsdata.tables import TRANSCODES as RUNGS

IDENTITIES = ("pipeline", "decode", "vault", "trainer")
PLACES = ("store", "vault", "landing")
POLICY_VERSION = "2012-10-17"

READ = ("s3:GetObject",)
WRITE = ("s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
DELETE = ("s3:DeleteObject",)
PURGE = ("s3:DeleteObject", "s3:DeleteObjectVersion")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What one identity may do under some prefixes of one place.

    Attributes:
        place: One of PLACES.
        prefixes: Key prefixes, each ending in a slash; an empty one is all of the place.
        actions: S3 actions on objects.
        has_names: Whether the names of objects there may be listed. Who may not is told that an
            object which is missing is forbidden.
        has_versions: Whether versions may be listed too, as purging needs.
    """

    place: str
    prefixes: tuple[str, ...]
    actions: tuple[str, ...]
    has_names: bool = True
    has_versions: bool = False


GRANTS: Mapping[str, tuple[Grant, ...]] = {
    "pipeline": (
        Grant(place="store", prefixes=("",), actions=(*READ, *WRITE, *DELETE)),
        Grant(place="landing", prefixes=("",), actions=(*READ, *WRITE, *PURGE), has_versions=True),
        # Names and sizes tell whether a member is there; bytes are never given back.
        Grant(place="vault", prefixes=("raw/", "sidecars/"), actions=WRITE),
    ),
    "decode": (
        Grant(
            place="store",
            prefixes=("raw/", "derived/", "training/", "tables/", "orders/", "progress/"),
            actions=READ,
        ),
        Grant(
            place="store",
            prefixes=("derived/", "training/", "tables/", "progress/", "reports/"),
            actions=WRITE,
        ),
    ),
    "vault": (
        Grant(place="vault", prefixes=("",), actions=READ),
        Grant(place="store", prefixes=("orders/", "tables/", "progress/"), actions=READ),
        Grant(place="store", prefixes=("tables/", "progress/", "reports/"), actions=WRITE),
    ),
    "trainer": (
        Grant(place="store", prefixes=("training/",), actions=READ),
        # What was served is told by putting it; nothing there can be read back.
        Grant(
            place="store",
            prefixes=("inbox/served/", "inbox/telemetry/"),
            actions=WRITE,
            has_names=False,
        ),
    ),
}
# Trainers that decode transcodes themselves (`PlanDataset(decoder=...)`) read those too.
TRANSCODES = Grant(
    place="store", prefixes=tuple(f"derived/transcodes_{name}/" for name in RUNGS), actions=READ
)
SEALED_FROM = ("pipeline", "decode", "trainer")


def grants_of(identity: str, *, reads_transcodes: bool = False) -> tuple[Grant, ...]:
    """What one identity may do.

    Args:
        identity: One of IDENTITIES.
        reads_transcodes: Whether trainers of this deployment read transcodes as well.

    Raises:
        ValueError: Another identity.
    """
    if identity not in GRANTS:
        raise ValueError(f"identity {identity!r}: expected one of {', '.join(IDENTITIES)}")
    is_more = reads_transcodes and identity == "trainer"
    return (*GRANTS[identity], *((TRANSCODES,) if is_more else ()))


def policy(
    identity: str, *, store: str, vault: str, landing: str, reads_transcodes: bool = False
) -> dict[str, Any]:
    """The IAM policy of one identity; places that are no buckets are left out.

    Args:
        identity: One of IDENTITIES.
        store: Address of the object store.
        vault: Address of the vault.
        landing: Address of the landing zone.
        reads_transcodes: See `grants_of`.

    Raises:
        ValueError: Another identity, or no place is a bucket.
    """
    places = _places(store=store, vault=vault, landing=landing)
    grants = grants_of(identity, reads_transcodes=reads_transcodes)
    return {"Version": POLICY_VERSION, "Statement": _statements(identity, grants, places)}


def bucket_policy(
    bucket: str,
    principals: Mapping[str, str],
    *,
    store: str,
    vault: str,
    landing: str,
    reads_transcodes: bool = False,
) -> dict[str, Any]:
    """The policy of one bucket, for servers that know no other.

    Args:
        bucket: Name of the bucket.
        principals: Identity -> ARN of its user, such as ``arn:aws:iam:::user/decode``. The
            bucket's owner must be none of them: owners may do anything.
        store: Address of the object store.
        vault: Address of the vault.
        landing: Address of the landing zone.
        reads_transcodes: See `grants_of`.

    Raises:
        ValueError: An unknown identity, or no place lies in that bucket.
    """
    places = _places(store=store, vault=vault, landing=landing)
    here = {name: address for name, address in places.items() if address.bucket == bucket}
    if not here:
        raise ValueError(f"bucket {bucket!r}: expected that of one of {sorted(places)}")
    statements = [
        statement | {"Sid": f"{identity}{statement['Sid']}", "Principal": {"AWS": [arn]}}
        for identity, arn in sorted(principals.items())
        for statement in _statements(
            identity, grants_of(identity, reads_transcodes=reads_transcodes), here
        )
    ]
    return {"Version": POLICY_VERSION, "Statement": statements}


def buckets(*, store: str, vault: str, landing: str) -> list[str]:
    """Names of all buckets that hold a place, sorted."""
    places = _places(store=store, vault=vault, landing=landing)
    return sorted({address.bucket for address in places.values()})


def _places(**addresses: str) -> dict[str, S3Address]:
    found = {n: parse_s3_address(a) for n, a in addresses.items() if a.startswith("s3://")}
    if not found:
        raise ValueError(
            f"no place of {addresses} is a bucket: on a disk, who may do what is for the "
            "system's own users and groups to say"
        )
    return found


def _statements(
    identity: str, grants: Sequence[Grant], places: Mapping[str, S3Address]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for grant in (grant for grant in grants if grant.place in places):
        address, number = places[grant.place], len(found)
        prefixes = [address.prefix + prefix for prefix in grant.prefixes]
        found.append(
            {
                "Sid": f"{grant.place}{number}objects",
                "Effect": "Allow",
                "Action": list(grant.actions),
                "Resource": [f"arn:aws:s3:::{address.bucket}/{prefix}*" for prefix in prefixes],
            }
        )
        if grant.has_names:
            found.append(_names_statement(grant, address, prefixes, number))
    if identity in SEALED_FROM and "vault" in places:
        found.append(
            {
                "Sid": "vaultsealed",
                "Effect": "Deny",
                "Action": ["s3:GetObject", "s3:GetObjectVersion"],
                "Resource": [f"arn:aws:s3:::{places['vault'].bucket}/{places['vault'].prefix}*"],
            }
        )
    return found


def _names_statement(
    grant: Grant, address: S3Address, prefixes: list[str], number: int
) -> dict[str, Any]:
    versions = ["s3:ListBucketVersions"] if grant.has_versions else []
    statement: dict[str, Any] = {
        "Sid": f"{grant.place}{number}names",
        "Effect": "Allow",
        "Action": ["s3:ListBucket", *versions],
        "Resource": [f"arn:aws:s3:::{address.bucket}"],
    }
    if "" not in prefixes:
        # "IfExists": whoever asks for one missing object lists nothing, and gets "missing" as
        # the answer, not "forbidden", only where listing is allowed.
        statement["Condition"] = {
            "StringLikeIfExists": {"s3:prefix": [f"{prefix}*" for prefix in prefixes]}
        }
    return statement
