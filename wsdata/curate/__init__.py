"""Curate: a recipe, evaluated against the catalog, gives a frozen list of samples.

Receives: labelled clips, match pairs, vault prints, tombstones, a recipe.
Exposes: decontamination hits, semantic duplicates, and the manifest of a dataset version.
"""
