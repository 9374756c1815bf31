"""wsdata: raw video, audio and images in, training-ready tensors out.

The stages, in the order a clip passes them:

    ingest, preprocess, label, curate, shard, loader, lifecycle, observability

The same names recur in assets, tests, asset keys and the command line.
"""
