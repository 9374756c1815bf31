"""The object store, for Dagster steps and for the workers they order."""

import dagster as dg

from wsdata.store import BlobStore, open_store


class BlobStoreResource(dg.ConfigurableResource):
    """Opens the object store that this deployment names."""

    address: str

    def open(self) -> BlobStore:
        """Return a store; nothing is contacted before its first use."""
        return open_store(self.address)
