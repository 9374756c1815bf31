"""Preprocess: raw assets become clips with a ladder, sound, frames and scores.

Receives: raw assets, and what became of their decoding before.
Exposes: clips, transcodes by rung, audio tracks, frame packs, versioned scores, the gates' word.
"""
