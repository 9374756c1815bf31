"""Parser, dispatch, exit codes: 0 done or nothing to do, 1 failed, 2 wrong call.

Each command's function lies in its own module and returns a JSON-able answer and lines for a
person. They are imported when called, so that ``wsdata --help`` is fast.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a command found: for programs, for people, and as an exit code."""

    data: Any
    lines: Sequence[str] = ()
    code: int = 0


def build_parser() -> argparse.ArgumentParser:
    """Build the whole command line. Commands and options are frozen by a test."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="answer as JSON")
    shared.add_argument("--home", help="home of the deployment; default $WSDATA_HOME or .wsdata")
    parser = argparse.ArgumentParser(
        prog="wsdata", description="Raw video, audio and images in; training-ready tensors out."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(group, name: str, function: str, text: str) -> argparse.ArgumentParser:  # noqa: ANN001
        made = group.add_parser(name, help=text, description=text, parents=[shared])
        made.set_defaults(function=function)
        return made

    def group(name: str, text: str):  # noqa: ANN202
        made = commands.add_parser(name, help=text, description=text)
        return made.add_subparsers(dest=f"{name}_command", metavar="COMMAND", required=True)

    run = add(commands, "run", "run:run", "the main job: drops to batches, through Dagster")
    run.add_argument("--drop", action="append", default=[], metavar="FOLDER",
                     help="make a drop of this folder's media first; may be repeated")  # fmt: skip
    run.add_argument("--recipe", metavar="FILE", help="recipe of the next dataset version")
    run.add_argument("--verify", action="store_true",
                     help="ask the store for every blob of what is done")  # fmt: skip
    _declaration_options(run)
    _add_drops(group("drop", "deliveries"), add)
    _add_datasets(group("dataset", "dataset versions"), add)
    _add_catalog(group("catalog", "backup and restore of the ledger"), add)
    _add_deployment(group("deployment", "who may do what, and whether it is so"), add)
    _add_questions(commands, group, add)
    stage = add(commands, "stage", "stage:stage", "run one step's order, as pools do")
    for name in ("stage", "step", "order"):
        stage.add_argument(name)
    stage.add_argument("--store", default="", metavar="ADDRESS",
                       help="the order is an object of this store")  # fmt: skip
    stage.add_argument("--report", default="", metavar="KEY",
                       help="put the report there, in that store")  # fmt: skip
    return parser


def _declaration_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", choices=("licensed", "crawl", "synthetic"),
                        help="default: as the sidecars tell, else licensed")  # fmt: skip
    parser.add_argument("--source", help="source name; default: the folder's")
    parser.add_argument("--license", metavar="ID",
                        help="default: as a licence file tells, else unknown")  # fmt: skip


def _add_drops(drops, add) -> None:  # noqa: ANN001
    make = add(drops, "make", "drops:make", "make a drop of a folder of media")
    make.add_argument("folder")
    _declaration_options(make)
    make.add_argument("--territory")
    make.add_argument("--rights-from", metavar="DAY")
    make.add_argument("--rights-until", metavar="DAY")
    make.add_argument("--generator", help="model or renderer of synthetic material")
    make.add_argument("--continuous", action="store_true", help="each file is one take")
    make.add_argument("--records", metavar="FILE",
                      help="sidecar, JSON lines or Parquet; default: the folder's own, or files "
                           "beside the media such as a.json and a.txt of a.mp4")  # fmt: skip
    check = add(drops, "check", "drops:check", "check a drop against the contract")
    check.add_argument("folder")
    add(drops, "list", "drops:list_drops", "drops in the landing zone, and what became of them")


def _add_datasets(datasets, add) -> None:  # noqa: ANN001
    add(datasets, "list", "datasets:list_versions", "dataset versions")
    cut = add(datasets, "cut", "datasets:cut", "cut a dataset version from a recipe")
    cut.add_argument("recipe")
    cut.add_argument("--version", help="name of the version; default: the next")
    cut.add_argument("--as-of-date", metavar="DAY", help="day that rights are judged by")
    diff = add(datasets, "diff", "datasets:diff", "what came, went and changed, and why")
    diff.add_argument("old")
    diff.add_argument("new")
    patch = add(datasets, "patch", "datasets:patch", "leave a cohort out from a step on")
    patch.add_argument("version")
    patch.add_argument("--exclude", metavar="FILE", help="asset, clip or sample ids, one a line")
    patch.add_argument("--from-step", type=int, metavar="N")
    patch.add_argument("--again", action="store_true",
                       help="instead: publish what this patch lost")  # fmt: skip
    pin = add(datasets, "pin", "datasets:pin", "keep a version's objects, and say which they are")
    pin.add_argument("version")
    unpin = add(datasets, "unpin", "datasets:unpin", "keep them no more for its sake")
    unpin.add_argument("version")
    unpin.add_argument("--reason", required=True, help="kept")
    add(datasets, "pins", "datasets:pins", "which versions and patches are pinned")
    sync = add(datasets, "sync", "datasets:sync", "copy what trainers read to another store")
    sync.add_argument("version")
    sync.add_argument("store", help="address: a folder, or s3://bucket/prefix?endpoint=...")
    sync.add_argument("--deep", action="store_true", help="read back all that lies there")
    sync.add_argument("--dry-run", action="store_true", help="say what it would copy and cost")
    sync.add_argument("--threads", type=int, default=8, metavar="N", help="objects at once")
    _add_exports(datasets, add)


def _add_exports(datasets, add) -> None:  # noqa: ANN001
    export = add(datasets, "export", "exports:export", "write samples for other loaders")
    export.add_argument("version")
    export.add_argument("--format", required=True, choices=("mds", "webdataset"))
    export.add_argument("--out", required=True, metavar="WHERE",
                        help="a folder or s3://bucket/prefix: new, empty, or the same")  # fmt: skip
    export.add_argument("--bucket", metavar="B", help="this one alone, such as 256p/448x256/33")
    export.add_argument("--order", choices=("shard", "plan"), default="shard",
                        help="every sample once, or as training is served them")  # fmt: skip
    export.add_argument("--steps", metavar="A:B", help="half-open; of the plan's order")
    export.add_argument("--seed", type=int, help="of a run with another order than the plan's")
    export.add_argument("--max-bytes", type=int, metavar="N", help="where a file is full")
    export.add_argument("--threads", type=int, default=8, metavar="N", help="samples at once")
    export.add_argument("--link", action="store_true",
                        help="whole shards as links into the store, for reading only")  # fmt: skip
    check = add(datasets, "export-check", "exports:export_check", "read an export back")
    check.add_argument("folder", help="or s3://bucket/prefix")
    listing = add(datasets, "exports", "exports:exports", "where bytes were exported to")
    listing.add_argument("--gone", metavar="EXPORT", help="state that it was deleted")
    listing.add_argument("--reason", metavar="TEXT", help="by whom, and how it is known")


def _add_catalog(catalog, add) -> None:  # noqa: ANN001
    dump = add(catalog, "export", "catalog:export_catalog", "dump the whole history to a file")
    dump.add_argument("file", help="*.jsonl or *.jsonl.gz, a new file")
    restore = add(catalog, "import", "catalog:import_catalog", "put a dump into an empty ledger")
    restore.add_argument("file", help="what `export` wrote, from SQLite or Postgres")
    add(catalog, "verify", "catalog:verify_catalog", "check the history against its chain")


def _add_deployment(deployment, add) -> None:  # noqa: ANN001
    policy = add(deployment, "policy", "deployments:policy", "the S3 policy of an identity")
    policy.add_argument("identity", help="pipeline, decode, vault or trainer")
    of_buckets = add(deployment, "bucket-policies", "deployments:bucket_policies",
                     "the same as policies of buckets, as Ceph wants them")  # fmt: skip
    of_buckets.add_argument("--principal", action="append", required=True, metavar="IDENTITY=ARN")
    check = add(deployment, "check", "deployments:check", "try every place, and what is forbidden")
    check.add_argument("--identity", help="default: $WSDATA_IDENTITY, or pipeline")


def _add_questions(commands, group, add) -> None:  # noqa: ANN001
    funnel = add(commands, "funnel", "questions:funnel", "what came in, what is left, and why")
    funnel.add_argument("--drop", metavar="KEY")
    funnel.add_argument("--source")
    funnel.add_argument("--version")
    lineage = group("lineage", "where it came from, where it went")
    for kind, text in (
        ("sample", "VERSION:STEP:SLOT"),
        ("clip", "a clip's id"),
        ("asset", "a raw asset's id, or its first digits"),
    ):
        add(lineage, kind, f"questions:lineage_{kind}", text).add_argument("id", help=text)
    plan = group("plan", "steps to samples, and back")
    show = add(plan, "show", "questions:plan_show", "the samples of a step")
    show.add_argument("version")
    show.add_argument("--step", required=True, type=int)
    where = add(plan, "where", "questions:plan_where", "the steps that serve a clip")
    where.add_argument("version")
    where.add_argument("--clip", required=True, metavar="ID")
    where.add_argument("--until", type=int, metavar="STEP", help="default: the plan's end")
    run = add(plan, "run", "runs:show_run", "a run's segments, and which world sizes can read it")
    run.add_argument("file", help="segments, TOML or JSON")
    served = group("served", "what training runs were really served, as they told it")
    add(served, "list", "served:list_runs", "runs; of one run, its ranges").add_argument("--run")
    times = add(served, "where", "served:where", "the steps of runs that served a clip")
    times.add_argument("--clip", required=True, metavar="ID")
    times.add_argument("--run", help="one run alone")
    quarantine = group("quarantine", "files that could not be decoded")
    held = add(quarantine, "list", "questions:quarantine_list", "what is held, and why")
    release = add(quarantine, "release", "questions:quarantine_release", "let some be tried again")
    release.add_argument("id", nargs="*", help="raw asset ids, or the first digits of each")
    for choosing in (held, release):
        choosing.add_argument("--drop", metavar="KEY")
        choosing.add_argument("--source")
        choosing.add_argument("--matching", metavar="TEXT", help="text within the reason")
    release.add_argument("--reason", required=True, help="what has changed since")
    release.add_argument("--dry-run", action="store_true", help="say which they would be")
    _add_vault(group("vault", "the eval list, and where its assets are"), add)
    safety = group("safety", "what matches a safety list, for the team that answers for it")
    add(safety, "list", "safety:list_hits", "lists in force, and what matches them")
    told = add(safety, "report", "safety:report", "all that is known of one raw asset that matches")
    told.add_argument("id", help="a raw asset's id, or its first digits")
    told.add_argument("--note", default="", help="state what was done about it; kept")
    generated = group("generated", "what models made, known before it arrives")
    register = add(generated, "register", "generated:register",
                   "register fingerprints of generated material")  # fmt: skip
    register.add_argument("file", nargs="?", help="fingerprints, Parquet or JSON Lines")
    register.add_argument("--from-media", metavar="FOLDER", help="print these media instead")
    register.add_argument("--generator", required=True, metavar="NAME")
    add(generated, "list", "generated:list_registrations", "what is registered")
    takedown = group("takedown", "rights requests")
    request = add(takedown, "request", "questions:takedown_request", "exclude material and twins")
    for name in ("asset", "url", "source", "license"):
        request.add_argument(f"--{name}", action="append", default=[])
    request.add_argument("--reason", required=True)
    request.add_argument("--dry-run", action="store_true")
    report = add(takedown, "report", "questions:takedown_report", "what a request excluded")
    report.add_argument("id")
    _add_capacity(add(commands, "capacity", "capacity:capacity", "what a corpus and a run take"))
    fsck = add(commands, "fsck", "questions:fsck", "the ledger against the store, both ways")
    fsck.add_argument("--deep", action="store_true", help="also read every blob")
    gc = add(commands, "gc", "questions:gc", "objects that nothing refers to")
    gc.add_argument("--apply", action="store_true", help="delete them")
    gc.add_argument("--min-age-hours", type=float, default=24.0, metavar="H",
                    help="leave what is younger: a running step may need it")  # fmt: skip


def _add_vault(vault, add) -> None:  # noqa: ANN001
    add(vault, "list", "vaults:list_members", "listed assets: sealed, exposed or not landed")
    listing = add(vault, "add", "vaults:add", "append assets to the eval list")
    listing.add_argument("file", help="asset ids, one a line, with names of eval sets after them")
    listing.add_argument("--set", metavar="NAME", help="eval set that they belong to")
    add(vault, "exposure", "vaults:exposure", "where assets listed late have been used")


def _add_capacity(capacity: argparse.ArgumentParser) -> None:
    for name, kind, text in (
        ("tokens", float, "latent tokens that the run trains on"),
        ("raw-hours", float, "hours of raw video"),
        ("days", float, "days that the run takes"),
        ("accelerators", int, "accelerators that train"),
        ("weeks", float, "weeks in which the corpus is to be built"),
    ):
        capacity.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    capacity.add_argument("--encode-plan", choices=("curriculum", "full_ladder"),
                          help="which curated hours are encoded at which rung")  # fmt: skip
    capacity.add_argument("--config", metavar="FILE", help="TOML of any input of the model")
    capacity.add_argument("--measured", metavar="FILE", help="JSON of measured inputs")
    capacity.add_argument("--min-hours", type=float, default=10.0, metavar="H",
                          help="hours in the catalog from which on it measures")  # fmt: skip
    capacity.add_argument("--min-worker-hours", type=float, default=0.1, metavar="H",
                          help="hours of work from which on a step's speed is used")  # fmt: skip
    capacity.add_argument("--reference", action="store_true", help="take nothing from this home")
    capacity.add_argument("--helm-values", action="store_true", help="print the pools' sizes")
    capacity.add_argument("--long", action="store_true", help="all inputs and contradictions")


def run_command(arguments: Sequence[str]) -> int:
    """Run one command, print its answer, and return the exit code."""
    from wsdata.errors import StoreFull, WsdataError, is_disk_full

    args = build_parser().parse_args(arguments)
    module, _, name = args.function.partition(":")
    try:
        answer: Answer = getattr(importlib.import_module(f"wsdata.cli.{module}"), name)(args)
    except (WsdataError, ValueError) as error:
        return _fail(args, error)
    except OSError as error:
        if error.errno is None:
            raise
        return _fail(args, error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not is_disk_full(error):
            raise
        return _fail(args, StoreFull("no space left for the catalog: free some and try again"))
    if args.json:
        print(json.dumps(answer.data, ensure_ascii=False, indent=1, default=str))
    else:
        for line in answer.lines:
            print(line)
    return answer.code


def _fail(args: argparse.Namespace, error: Exception) -> int:
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    if args.json:
        print(json.dumps({"error": text, "kind": type(error).__name__}))
    print(f"wsdata: {text}", file=sys.stderr)
    return 2 if isinstance(error, ValueError) else 1
