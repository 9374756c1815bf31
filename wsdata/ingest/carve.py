"""The carve: which raw assets go to the eval vault, before anything else sees them.

The decision looks at the asset id, the deployment's salt and share, and its append-only eval
list; never at a recipe, a source or what the bytes show, so that it never changes.
"""

import hashlib
from collections.abc import Container
from fractions import Fraction


def carve_reason(
    asset_id: str, *, salt: str, share: float, eval_list: Container[str]
) -> str | None:
    """Tell whether, and why, a raw asset belongs to the vault.

    Args:
        asset_id: sha256 of the bytes, 64 hex digits.
        salt: The deployment's salt, at most 64 bytes.
        share: Share of assets that are carved, in [0, 1].
        eval_list: Asset ids that are carved whatever their hash.

    Returns:
        ``"listed"``, ``"share"``, or None for training material.
    """
    if asset_id in eval_list:
        return "listed"
    keyed = hashlib.blake2b(asset_id.encode(), key=salt.encode(), digest_size=8).digest()
    # Exact: the decimal that was configured, not its nearest float.
    below = Fraction(str(share)) * 2**64
    return "share" if int.from_bytes(keyed, "big") < below else None
