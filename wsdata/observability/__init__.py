"""Observability: where a sample came from, what was lost, what it cost.

Receives: the catalog and the records of runs.
Exposes: lineage, funnels, kill rates, drift, incidents, costs.
"""
