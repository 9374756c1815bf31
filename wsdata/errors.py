"""Exceptions that callers tell apart. Bad arguments stay ``ValueError``."""

import errno


class WsdataError(Exception):
    """Anything wsdata refuses or cannot do, with what to do about it."""


class DropRefused(WsdataError):
    """A delivery breaks the drop contract. Carries every fault found."""

    def __init__(self, drop: str, faults: list[str], *, fix: str = "") -> None:
        self.drop = drop
        self.faults = faults
        listed = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(
            f"drop {drop!r} breaks the contract in {len(faults)} place(s):\n{listed}\n"
            + (fix or "Nothing of it was landed: repair the folder and write _READY again.")
        )


class RecipeError(WsdataError):
    """A recipe has an unknown key, a wrong type or an impossible value."""


class StoreError(WsdataError):
    """The object store refused or failed a request."""


class ObjectMissing(StoreError):
    """A key that should be in the store is not."""


class StoreFull(StoreError):
    """No space is left where an object was being written."""


class StoreDenied(StoreError):
    """The object store refuses this identity what it asked for."""


class StoreUnavailable(StoreError):
    """The object store did not answer, or failed in a way that may pass."""


class CatalogError(WsdataError):
    """The ledger cannot answer, or a commit contradicts it."""


class CatalogUnavailable(CatalogError):
    """The ledger's database did not answer for as long as we were ready to wait."""


class NotReady(CatalogError):
    """A step's input has no live object yet."""


class IntegrityError(WsdataError):
    """Bytes read do not match their recorded digest."""


class SandboxError(WsdataError):
    """The sandbox level that the deployment demands was not reached."""


class DecodeFailed(WsdataError):
    """A media file could not be decoded. The caller turns it into a record."""


class EncoderFailed(WsdataError):
    """An encoder does not start here, or gave up: another engine may be tried."""


class PlanError(WsdataError):
    """A step plan cannot be compiled or asked as wanted."""


class CursorError(WsdataError):
    """A resume state belongs to another plan."""


class StepFailed(WsdataError):
    """A step ran but its outcome is outside the bounds it promises."""


class CaptionerUnavailable(WsdataError):
    """A caption engine as a whole does not answer: its server is down, or refuses the client."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that no space is left (SQLite says it its way)."""
    while error is not None:
        if isinstance(error, StoreFull) or "database or disk is full" in str(error):
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
