"""The ledger, for Dagster steps. Workers in pools are never given it."""

import dagster as dg

from wsdata.catalog.ledger import Ledger


class CatalogResource(dg.ConfigurableResource):
    """Opens the ledger that this deployment names."""

    url: str

    def open(self) -> Ledger:
        """Return the ledger, making its tables where there are none."""
        return Ledger(self.url)
