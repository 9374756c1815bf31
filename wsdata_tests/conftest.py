"""The order of the files: those that take minutes first, so that no worker waits at the end.

The Makefile keeps xdist from putting files with few tests last, which these are.
"""

LONG = ("test_kills.py", "test_drop_to_batch.py", "test_order_free.py", "test_hostile_drop.py")


def pytest_collection_modifyitems(items):
    """Put the long files first, and leave the rest as it is."""
    rank = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONG)))
