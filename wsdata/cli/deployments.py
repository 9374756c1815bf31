"""``wsdata deployment``: who may do what in the buckets, and whether that is in force."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from wsdata import access
from wsdata.access_check import check_access, default_identity
from wsdata.cli.main import Answer
from wsdata.cli.opened import table
from wsdata.deployment import Deployment, load_deployment


def _load(args: argparse.Namespace) -> Deployment:
    return load_deployment(Path(args.home) if args.home else None)


def _addresses(deployment: Deployment) -> dict[str, str]:
    return {place: getattr(deployment, place) for place in access.PLACES}


def policy(args: argparse.Namespace) -> Answer:
    """``deployment policy``: the IAM policy of an identity."""
    deployment = _load(args)
    made = access.policy(
        args.identity,
        **_addresses(deployment),
        reads_transcodes=deployment.trainers_read_transcodes,
    )
    return Answer(made, [json.dumps(made, indent=1)])


def bucket_policies(args: argparse.Namespace) -> Answer:
    """``deployment bucket-policies``: for servers that know policies of buckets alone."""
    principals: dict[str, str] = {}
    for stated in args.principal:
        identity, is_stated, arn = stated.partition("=")
        if not is_stated or identity not in access.IDENTITIES:
            raise ValueError(
                f"--principal {stated!r}: expected IDENTITY=ARN, such as "
                f"decode=arn:aws:iam:::user/decode, of {', '.join(access.IDENTITIES)}"
            )
        principals[identity] = arn
    deployment = _load(args)
    addresses = _addresses(deployment)
    made = {
        bucket: access.bucket_policy(
            bucket, principals, **addresses, reads_transcodes=deployment.trainers_read_transcodes
        )
        for bucket in access.buckets(**addresses)
    }
    return Answer(made, [json.dumps(made, indent=1)])


def check(args: argparse.Namespace) -> Answer:
    """``deployment check``: try every place with the credentials at hand."""
    identity = args.identity or default_identity()
    trials = check_access(_load(args), identity)
    faults = [f"{trial.place}: {fault}" for trial in trials for fault in trial.faults]
    lines = table(
        ["place", "reachable", "read", "write", "keeps first", "address"],
        [
            [t.place, *map(_word, (t.is_reachable, t.may_read, t.may_write, t.keeps_first)),
             t.address]
            for t in trials
        ],
    )  # fmt: skip
    lines += [f"{trial.place}: {note}" for trial in trials for note in trial.notes]
    lines += faults or [f"{identity} may do what it should, and was refused what it should not"]
    data = {"ok": not faults, "identity": identity, "places": [asdict(trial) for trial in trials]}
    return Answer(data, lines, code=1 if faults else 0)


def _word(found: bool | None) -> str:  # noqa: FBT001
    return {True: "yes", False: "no", None: "-"}[found]
