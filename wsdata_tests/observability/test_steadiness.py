"""Steadiness of kill rates: the test against an exact count, and the rule on made-up histories."""

import math
import random
from fractions import Fraction

import pytest

from wsdata import tables
from wsdata.observability.steadiness import Count, alarms, check_drop, fisher_p, judge
from wsdata_tests.lifecycle.fabricated import Home

DROP = "crawl.web.20261103.001"


def exact_p(a: Count, b: Count) -> Fraction:
    """The same by whole numbers: every way to draw."""
    hits, drawn, total = a.hits + b.hits, a.of, a.of + b.of

    def ways(k):
        if not 0 <= drawn - k <= total - hits:
            return 0
        return math.comb(hits, k) * math.comb(total - hits, drawn - k)

    every = math.comb(total, drawn)
    low = sum(ways(k) for k in range(a.hits + 1))
    high = sum(ways(k) for k in range(a.hits, min(hits, drawn) + 1))
    return min(Fraction(1), 2 * Fraction(min(low, high), every))


def test_the_test_is_fishers():
    rng = random.Random(5)  # noqa: S311
    for _ in range(120):
        a, b = (Count(rng.randint(0, n), n) for n in (rng.randint(1, 60), rng.randint(1, 200)))
        assert fisher_p(a, b) == pytest.approx(float(exact_p(a, b)), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("mine", "base", "is_own", "severity"),
    [
        ((10, 100), (100, 1000), True, None),  # as ever
        ((19, 19), (0, 10_000), True, None),  # too few to say
        ((3, 20), (50, 1000), True, None),  # as chance will have it
        ((600, 10_000), (200, 10_000), True, None),  # certain, and too little to matter
        ((20, 100), (50, 1000), True, "warn"),
        ((50, 100), (50, 1000), True, "error"),
        ((0, 200), (100, 1000), True, "warn"),  # a filter that stops nothing any more
        ((20, 100), (50, 1000), False, None),  # sources differ
        ((50, 100), (50, 1000), False, "warn"),
    ],
)
def test_the_rule(mine, base, is_own, severity):
    assert judge(Count(*mine), Count(*base), is_own=is_own) == severity


def rates(drop, *, stopped=2, errors=0, seen=100, name="safety"):
    source = drop.split(".")[1]
    return {
        "drop": drop, "source": source, "filter": name, "num_in": seen, "num_stopped": stopped,
        "num_errors": errors, "kill_share": stopped / seen,
    }  # fmt: skip


def test_chance_alone_hardly_ever_alarms():
    rng = random.Random(1)  # noqa: S311

    def drawn(drop):
        return rates(drop, stopped=sum(rng.random() < 0.08 for _ in range(100)))

    found = 0
    for _ in range(120):
        mine = tables.rows_of("kill_rates", [drawn(DROP)])
        own = tables.rows_of("kill_rates", [drawn(DROP)])
        found += len(alarms(mine, own, tables.empty("kill_rates")))
    assert found <= 1


def test_a_drop_is_held_against_its_own_past_and_errors_apart(tmp_path):
    home = Home(tmp_path)
    past = [f"crawl.web.202611{day:02d}.001" for day in range(1, 3)]
    for drop in past:
        home.commit(drop, {"kill_rates": [rates(drop)]})
    later = "crawl.web.20261104.001"  # came in first, and is no past of this drop
    home.commit(later, {"kill_rates": [rates(later, stopped=60)]})
    other = "licensed.acme.20261101.001"
    home.commit(other, {"kill_rates": [rates(other, stopped=3)]})
    home.commit(DROP, {"kill_rates": [rates(DROP, stopped=60, errors=40)]})
    told = [(alarm.severity, alarm.text) for alarm in check_drop(home.ledger, home.store, DROP)]
    assert told == [
        ("error", "safety stopped 60 of 100 (60.0%) clips of web, and 4 of 200 (2.0%) in its "
                  "earlier drops"),
        ("error", "safety failed on 40 of 140 (28.6%) clips of web, and 0 of 200 (0.0%) in its "
                  "earlier drops"),
        ("warn", "safety stopped 60 of 100 (60.0%) clips of web, and 3 of 100 (3.0%) in other "
                 "sources"),
        ("warn", "safety failed on 40 of 140 (28.6%) clips of web, and 0 of 100 (0.0%) in other "
                 "sources"),
    ]  # fmt: skip
    assert check_drop(home.ledger, home.store, past[0]) == []
