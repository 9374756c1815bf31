"""What a scrape of metrics tells, by series."""


def samples(families):
    """{(name, sorted label values): value}; a series that is told twice is a fault."""
    found = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found
