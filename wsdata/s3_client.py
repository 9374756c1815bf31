"""Requests to one bucket: made lazily, tried again where that can help, refused in plain words.

Servers of S3 fail now and then, and cut bodies short. Every request goes through one loop here;
botocore's own is off, so that how often a request was tried is known: a put that was tried twice
may have been done the first time. What objects mean belongs to `s3_store` and `ingest.landing`.
"""

import functools
import os
import random
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from wsdata.errors import (
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

MAX_TRIES = 12  # about half a minute in all: a server's restart, or a spell of SlowDown
BASE_PAUSE_S = 0.05
MAX_PAUSE_S = 20.0
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
MAX_CONNECTIONS = 64  # kept open: reader threads of a rank, second requests included
BLOCK_BYTES = 1 << 20

MISSING = ("NoSuchKey", "404")
FULL = ("QuotaExceeded", "507", "InsufficientStorage", "XMinioStorageFull", "StorageFull")
PASSING = (  # codes that another try may well not meet
    *("SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"),
    *("Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"),
    *("OperationAborted", "ConditionalRequestConflict", "PriorRequestNotComplete"),
)
VERBS = {
    "get_object": ("s3:GetObject", "read"),
    "head_object": ("s3:GetObject", "read"),
    "list_objects_v2": ("s3:ListBucket", "list"),
    "list_object_versions": ("s3:ListBucketVersions", "list the versions of"),
    "delete_object": ("s3:DeleteObject", "delete"),
}
IDENTITY_ENV = "WSDATA_IDENTITY"


class S3Address(NamedTuple):
    """``s3://bucket/prefix?endpoint=http://...&region=...``, taken apart.

    `prefix` is empty or ends in a slash; without `endpoint` it is Amazon's own S3.
    """

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    def __str__(self) -> str:
        """The address, as `parse_s3_address` reads it."""
        stated = {"endpoint": self.endpoint, "region": self.region}
        query = urlencode({k: v for k, v in stated.items() if v}, safe=":/[]@")
        return f"s3://{self.bucket}/{self.prefix}" + (f"?{query}" if query else "")


def parse_s3_address(address: str) -> S3Address:
    """Take an address apart; nothing is contacted.

    Raises:
        ValueError: It is no S3 address, names no bucket, or has an unknown option.
    """
    parts = urlsplit(address)
    options = parse_qs(parts.query)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"address {address!r}: expected s3://bucket/prefix")
    if unknown := sorted(set(options) - {"endpoint", "region"}):
        raise ValueError(f"address {address!r}: unknown options {unknown}; known: endpoint, region")
    prefix = parts.path.strip("/")
    return S3Address(
        parts.netloc,
        f"{prefix}/" if prefix else "",
        options.get("endpoint", [None])[0],
        options.get("region", [None])[0],
    )


class Answer(NamedTuple):
    """How a request ended: an empty `code` and the response, or a code that the caller awaits.

    With `num_tries` above one, an earlier try may have been carried out, its answer lost.
    """

    code: str
    response: dict[str, Any]
    num_tries: int


class S3Bucket:
    """A bucket, or a prefix of one. Safe to use from threads, and after a fork.

    Opening contacts nothing and reads no credentials; the first request does. Keys given and
    returned are those under the prefix.

    Args:
        address: Which bucket, where.
        max_tries: How often a request is made before its failure is told; at least 1.
        read_timeout_s: How long an answer may stay silent.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        max_tries: int = MAX_TRIES,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self.address = address
        self.max_tries = max_tries
        self.read_timeout_s = read_timeout_s
        self.num_retries = 0  # tries beyond the first, of all requests: for metrics
        self._locks: dict[int, threading.Lock] = {}  # by process: a fork may copy a held one
        self._made: tuple[int, Any] = (0, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.address, self.max_tries, self.read_timeout_s)

    @property
    def client(self) -> Any:
        """The process's own client: connections must not be shared with a forked child."""
        process = os.getpid()
        if self._made[0] != process:
            with self._locks.setdefault(process, threading.Lock()):
                if self._made[0] != process:
                    self._made = (process, _make_client(self.address, self.read_timeout_s))
        return self._made[1]

    def call(
        self, operation: str, key: str | None, *, accept: Collection[str] = (), **arguments: Any
    ) -> Answer:
        """Make one request, again and again while its failure may pass.

        Args:
            operation: A method of boto3's client.
            key: The object, or None where the request is about the bucket.
            accept: Error codes that the caller tells apart.
            **arguments: Passed on. A ``Body`` that is a file is read from its start each time.

        Raises:
            StoreDenied: This identity may not do that.
            StoreFull: A quota is used up.
            StoreError: Anything else that is not accepted.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        named = {"Key": self.address.prefix + key} if key is not None else {}
        for num_tries in range(1, self.max_tries + 1):
            if hasattr(arguments.get("Body"), "seek"):
                arguments["Body"].seek(0)
            try:
                method = getattr(self.client, operation)
                response = method(Bucket=self.address.bucket, **named, **arguments)
                return Answer("", response, num_tries)
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if code in accept:
                    return Answer(code, error.response, num_tries)
                if num_tries == self.max_tries or not _may_pass(error):
                    raise self._refusal(operation, key, error, code, num_tries) from error
            except (BotoCoreError, *broken_connections()) as error:
                if num_tries == self.max_tries or not isinstance(error, broken_connections()):
                    raise self._unreachable(operation, key, error) from error
            self.num_retries += 1
            pause(num_tries)
        raise AssertionError("the last try returns or raises")

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, etag: str | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes [start, end) of an object in blocks; a read that is cut goes on.

        Args:
            key: The object.
            start: First byte.
            end: Byte after the last; the object's end without it.
            etag: What the object must still be; what it is at first without it.

        Raises:
            ObjectMissing: There is no such object.
            StoreError: It is shorter than `end`, or was replaced while being read.
        """
        if end is not None and end <= start:
            return
        position, cuts = start, 0
        while end is None or position < end:
            response = self.open_body(key, position, end)
            total = position + response["ContentLength"]
            if end is not None and total < end:
                raise self.too_short(key, start, end, total)
            if etag not in (None, response["ETag"]):
                raise StoreError(
                    f"{key} in {self.address} was replaced while being read: read it again"
                )
            end, etag = int(total), response["ETag"]
            before, cut = position, None
            try:
                for block in _blocks(response["Body"]):
                    position += len(block)
                    yield block
            except broken_connections() as error:
                cut = error
            if position < end:
                cuts = 1 if position > before else cuts + 1
                if cuts >= self.max_tries:
                    raise self._unreachable("get_object", key, cut) from cut
                self.num_retries += 1
                pause(cuts)

    def open_body(self, key: str, position: int, end: int | None) -> dict[str, Any]:
        """Ask for the bytes [position, end); raises as `stream`. Its ``Body`` is to be closed."""
        until = "" if end is None else end - 1
        asked = {"Range": f"bytes={position}-{until}"} if position or end is not None else {}
        answer = self.call("get_object", key, accept=(*MISSING, "InvalidRange", "416"), **asked)
        if answer.code in MISSING:
            raise ObjectMissing(f"{key} is not in {self.address}")
        if answer.code:
            raise self.too_short(key, position, end, None)
        return answer.response

    def too_short(self, key: str, start: int, end: int | None, total: int | None) -> StoreError:
        """The error of an object that has `total` bytes, where [start, end) were wanted."""
        found = "fewer" if total is None else str(total - start)
        wanted = "more" if end is None else str(end - start)
        return StoreError(
            f"{key}: wanted {wanted} bytes at {start}, got {found}: the object is shorter"
        )

    def head(self, key: str, *, accept: Collection[str] = ()) -> Answer:
        """Ask for an object's metadata; the code is that of MISSING where there is none."""
        return self.call("head_object", key, accept=(*MISSING, *accept))

    def pages(
        self, prefix: str, *, after: str = "", delimiter: str = "", limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield pages of a listing, in key order; each page is a request of its own.

        Args:
            prefix: What keys start with.
            after: Only keys after this one.
            delimiter: What ends a common prefix.
            limit: At most this many entries a page; the server's 1,000 without it.
        """
        asked: dict[str, Any] = {"Prefix": self.address.prefix + prefix}
        if delimiter:
            asked["Delimiter"] = delimiter
        if after:
            asked["StartAfter"] = self.address.prefix + after
        if limit is not None:
            asked["MaxKeys"] = limit
        while True:
            page = self.call("list_objects_v2", None, **asked).response
            yield page
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def _refusal(
        self, operation: str, key: str | None, error: Any, code: str, num_tries: int
    ) -> StoreError:
        where = f"{key} in {self.address}" if key is not None else str(self.address)
        action, verb = VERBS.get(operation, ("s3:PutObject", "write"))
        if code in FULL or _status(error) == 507:
            return StoreFull(f"no space left for {where} ({code}): raise the quota and run again")
        if code == "NoSuchBucket":
            return StoreError(
                f"there is no bucket {self.address.bucket} at {self.address}: make it"
            )
        if _status(error) in (401, 403):
            return StoreDenied(
                f"{self._identity()} may not {verb} {where}: the server refused {action} ({code}). "
                "If that is the vault: the `vault` pool alone may read it. `wsdata deployment "
                "check` tells what this identity may, `wsdata deployment policy IDENTITY` prints "
                "what each should"
            )
        kind = StoreUnavailable if _may_pass(error) else StoreError
        return kind(f"{operation} of {where} failed, tried {num_tries} times: {error}")

    def _unreachable(self, operation: str, key: str | None, error: Exception | None) -> StoreError:
        where = f"{key} in {self.address}" if key is not None else str(self.address)
        hint = " Check the endpoint, and that nothing blocks the way to it."
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            hint = " Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or bind a workload identity."
        kind = StoreUnavailable if isinstance(error, broken_connections()) else StoreError
        return kind(f"{operation} of {where} failed: {error}.{hint}")

    def _identity(self) -> str:
        if name := os.environ.get(IDENTITY_ENV):
            return f"identity {name}"
        key = os.environ.get("AWS_ACCESS_KEY_ID", "")
        return f"the identity of access key ...{key[-4:]}" if len(key) > 8 else "this identity"


def _reopen(address: S3Address, max_tries: int, read_timeout_s: float) -> S3Bucket:
    return S3Bucket(address, max_tries=max_tries, read_timeout_s=read_timeout_s)


def _make_client(address: S3Address, read_timeout_s: float) -> Any:
    from botocore.config import Config
    from botocore.session import Session

    # What Amazon's S3 takes by default, checksums in trailers, other servers do not all know;
    # there the signature covers the sha256 of the body.
    other: dict[str, Any] = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
        **(other if address.endpoint else {}),
    )
    session = Session()
    session.register_component("data_loader", _api_descriptions())
    region = address.region or os.environ.get("AWS_REGION")
    region = region or session.get_config_variable("region")
    if region is None and address.endpoint:
        region = "us-east-1"  # a signature needs one; servers of one's own ask for none
    return session.create_client(
        "s3", endpoint_url=address.endpoint, region_name=region, config=config
    )


@functools.cache
def _api_descriptions() -> Any:
    """What botocore reads of its files for each client, 0.2 s each time, read once."""
    from botocore.loaders import create_loader

    return create_loader(os.environ.get("AWS_DATA_PATH"))


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _may_pass(error: Any) -> bool:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in FULL:
        return False
    return code in PASSING or _status(error) in (408, 429, 500, 502, 503, 504)


def broken_connections() -> tuple[type[Exception], ...]:
    """What botocore and urllib3 raise where no whole answer came."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
        exceptions.IncompleteReadError,
        ResponseParserError,
        exceptions.CredentialRetrievalError,
        exceptions.MetadataRetrievalError,
        HTTPError,
        ConnectionError,
        TimeoutError,
    )


def _blocks(body: Any) -> Iterator[bytes]:
    try:
        while block := body.read(BLOCK_BYTES):
            yield block
    finally:
        body.close()


def pause(num_tries: int) -> None:
    """Wait before another try: longer each time, and never all writers at once."""
    longest_s = min(MAX_PAUSE_S, BASE_PAUSE_S * 2 ** (num_tries - 1))
    time.sleep(random.uniform(0, longest_s))  # noqa: S311 - jitter is no secret
