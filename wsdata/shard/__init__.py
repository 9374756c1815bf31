"""Shard: samples become latents in bucket-pure shards, and steps become samples.

Receives: a manifest and the transcodes that it names.
Exposes: shards, caption packs, the dataset index and the step plan.
"""
