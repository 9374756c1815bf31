"""Filters: one versioned score or a few per clip, cheap to expensive.

Receives: clips, frame packs, audio tracks.
Exposes: rows of `<filter>_scores`; nothing here drops a clip.
"""
