"""The sealed eval vault: a store of its own, with credentials of its own.

The pipeline can put members and their sidecars, and cannot read them back. Prints of members
leave through `ingest.vault_prints` alone, which runs in the `vault` pool.
"""

from pathlib import Path
from typing import Any

from wsdata.digest import canonical_json
from wsdata.ids import raw_key
from wsdata.store import open_store


def sidecar_key(asset_id: str) -> str:
    """Where the vault keeps what was said about a member."""
    return f"sidecars/{asset_id[:2]}/{asset_id}.json"


def actions_key(asset_id: str, sha256: str, suffix: str) -> str:
    """Where the vault keeps a track of actions that came with a member."""
    return f"sidecars/{asset_id[:2]}/{asset_id}.actions-{sha256}{suffix}"


class VaultWriter:
    """The pipeline's side of the vault: it puts, and offers no way to read.

    Args:
        address: Store address of the vault.
    """

    def __init__(self, address: str) -> None:
        self._store = open_store(address)

    def seal(self, asset_id: str, path: Path, record: dict[str, Any]) -> None:
        """Put a member's bytes and its sidecar record."""
        self._store.put_file(raw_key(asset_id), path)
        self._store.put(sidecar_key(asset_id), canonical_json(record).encode())

    def seal_actions(self, asset_id: str, path: Path, sha256: str, suffix: str) -> None:
        """Put the track of actions that came with a member."""
        self._store.put_file(actions_key(asset_id, sha256, suffix), path)

    def holds(self, asset_id: str) -> bool:
        """Whether a member's bytes are there: keys are listed, for to ask after one is to read."""
        key = raw_key(asset_id)
        return any(found == key for found, _ in self._store.list(key))
