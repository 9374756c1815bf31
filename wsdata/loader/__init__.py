"""Loader: a step plan and shards become batches, on any number of ranks.

Receives: a dataset version's index and plan, read access to training-ready objects.
Exposes: one batch per step and rank, a cursor of a few hundred bytes.
"""
