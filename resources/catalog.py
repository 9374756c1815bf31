"""The ledger, for Dagster steps. Workers in pools are never given it."""

import dagster as dg

from wsdata.catalog.ledger import Ledger
from wsdata.deployment import open_ledger


class CatalogResource(dg.ConfigurableResource):
    """Opens the ledger that this deployment names.

    `password_env` names the environment variable that holds its password: configuration is
    shown in the UI, and a password must not be.
    """

    url: str
    password_env: str = ""

    def open(self) -> Ledger:
        """Return the ledger, making its tables where there are none."""
        return open_ledger(self.url, self.password_env)
