"""Label: what is seen and heard in a clip, in words and vectors.

Receives: clips that passed the gates, their frame packs and scores.
Exposes: embeddings, camera motion, audio labels, captions, and their quality control.
"""
