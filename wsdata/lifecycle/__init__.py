"""Lifecycle: what is kept, what is taken out, what has to be made again.

Receives: the catalog, requests of rights teams, changed recipes and models.
Exposes: tombstones, patches, pins, snapshots, backfill plans, garbage.
"""
