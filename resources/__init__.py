"""WITH WHAT: the ledger, the store, recipes and compute pools that a deployment names."""
