"""Ingest: deliveries become immutable, content-addressed raw assets.

Receives: raw bytes of three source tiers, as drops in the landing zone.
Exposes: raw assets with provenance, probes, fingerprints, match pairs; the eval vault's prints.
"""
