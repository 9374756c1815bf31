"""Media: the only code that opens containers and codecs, and the sandbox around it.

Receives: bytes from outside, by descriptor.
Exposes: probes, frames, sound, encoded streams.
"""
