from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.curate.handdown import hand_down, minimum_of
from wsdata.curate.samples import Bucket, Sample, split_frames
from wsdata.ids import make_clip_id
from wsdata.recipe import HAND_DOWN_MOVES, Samples
from wsdata_tests.curate.catalog_support import SIZES, asset_id

LENGTHS = (33, 65, 121)
ASPECTS = tuple(SIZES["256p"])
PHASES = (("warm",), ("warm", "main"), ("main",))


def clip_id(number: int) -> str:
    return make_clip_id(asset_id(str(number)), track=0, start_ms=0, end_ms=9000)


def track(
    number: int, *, aspect="16:9", rung="256p", frames=121, stream="video", phases=("all",)
) -> list[Sample]:
    width, height = SIZES[rung][aspect]
    lengths = LENGTHS if frames > 1 else (1,)
    cuts = split_frames(frames, lengths)
    used = sum(count for _, count in cuts)
    return [
        Sample(
            clip_id=clip_id(number), stream=stream, phases=tuple(phases),
            bucket=Bucket(rung, width, height, count), start_frame=start,
            tail_frames=frames - used if place == len(cuts) - 1 else 0,
            full_width_px=width, full_height_px=height,
        )
        for place, (start, count) in enumerate(cuts)
    ]  # fmt: skip


def rules(*moves: str, batch: int = 4, **changes) -> Samples:
    return Samples(global_batch=batch, hand_down=moves, **changes)


def buckets(samples) -> dict[str, int]:
    return dict(Counter(sample.bucket.name for sample in samples))


def frames_in(samples) -> int:
    return sum(sample.bucket.num_frames for sample in samples)


def test_full_buckets_are_left_alone():
    samples = [s for n in range(4) for s in track(n)]
    made = hand_down(samples, rules(*HAND_DOWN_MOVES), seed=0)
    assert made.samples == sorted(samples, key=lambda s: s.sample_id)
    assert not made.lost
    assert not made.moves


def test_fewer_frames_cuts_the_whole_clip_anew():
    # 121 + 65 + 33 frames and a tail of 21: seven samples of 33 are in 240 frames.
    made = hand_down(track(0, frames=240), rules("fewer_frames"), seed=0)
    assert buckets(made.samples) == {"256p/256x144/33": 7}
    assert [s.start_frame for s in made.samples] == [33 * i for i in range(7)]


def test_the_first_move_of_the_recipe_that_is_enough_is_made():
    lone = track(9, aspect="1:1", frames=65)
    others = [
        s
        for n in range(4)
        for s in (*track(n, aspect="4:3", frames=65), *track(n + 20, aspect="1:1", frames=33))
    ]
    shorter = hand_down([*lone, *others], rules("fewer_frames", "crop"), seed=0)
    assert buckets(shorter.samples)["256p/192x192/33"] == 5
    cropped = hand_down([*lone, *others], rules("crop", "fewer_frames"), seed=0)
    assert buckets(cropped.samples)["256p/192x144/65"] == 5
    assert frames_in(cropped.samples) == frames_in([*lone, *others])


def test_a_smaller_rung_takes_over_where_the_clip_has_it():
    samples = [
        *(s for n in range(4) for s in track(n, frames=33)),
        *track(0, frames=33, rung="512p"),
    ]
    made = hand_down(samples, rules("smaller_rung"), seed=0)
    assert buckets(made.samples) == {"256p/256x144/33": 4}
    assert not made.lost
    alone = hand_down(track(7, frames=33, rung="512p"), rules("smaller_rung"), seed=0)
    assert len(alone.lost) == 1


def test_wide_pictures_are_cropped_to_fill_a_small_bucket_with_their_surplus():
    wide = [s for n in range(9) for s in track(n, frames=1)]
    few = [s for n in range(20, 22) for s in track(n, aspect="4:3", frames=1)]
    made = hand_down([*wide, *few], rules("crop"), seed=0)
    assert buckets(made.samples) == {"256p/256x144/1": 7, "256p/192x144/1": 4}
    assert not made.lost


def test_what_fits_nowhere_is_lost():
    made = hand_down(track(0, aspect="9:16", frames=33), rules(*HAND_DOWN_MOVES), seed=0)
    assert not made.samples
    assert len(made.lost) == 1


def test_a_bucket_is_short_for_the_phase_that_admits_few_of_it():
    many = [s for n in range(6) for s in track(n, frames=65, phases=("warm",))]
    upper = [s for n in range(10, 12) for s in track(n, frames=65, phases=("warm", "main"))]
    more = [s for n in range(20, 24) for s in track(n, frames=33, phases=("warm", "main"))]
    made = hand_down([*many, *upper, *more], rules("fewer_frames"), seed=0)
    main = [s for s in made.samples if "main" in s.phases]
    assert buckets(main) == {"256p/256x144/33": 6}
    assert buckets(made.samples)["256p/256x144/65"] == 6


def test_a_small_pool_moves_where_its_stream_has_more():
    others = [s for n in range(6) for s in track(n, frames=65)]
    pool = [s for n in range(10, 12) for s in track(n, frames=65, stream="rendered")]
    more = [s for n in range(20, 24) for s in track(n, frames=33, stream="rendered")]
    made = hand_down([*others, *pool, *more], rules("fewer_frames"), seed=0)
    assert {s.bucket.num_frames for s in made.samples if s.stream == "rendered"} == {33}


def test_a_bucket_may_have_a_batch_of_its_own():
    settings_ = rules("fewer_frames", batch_of_bucket={"256p/256x144/121": 1})
    made = hand_down(track(0), settings_, seed=0)
    assert buckets(made.samples) == {"256p/256x144/121": 1}


TRACKS = st.lists(
    st.tuples(
        st.sampled_from(ASPECTS),
        st.sampled_from(("256p", "512p")),
        st.one_of(st.just(1), st.integers(33, 400)),
        st.sampled_from(("real", "rendered")),
        st.sampled_from(PHASES),
    ),
    max_size=25,
)
MOVES = st.lists(st.sampled_from(HAND_DOWN_MOVES), unique=True).map(tuple)


def material(tracks) -> list[Sample]:
    return [
        sample
        for number, (aspect, rung, frames, stream, phases) in enumerate(tracks)
        for low in (("256p", "512p") if rung == "512p" else ("256p",))
        for sample in track(
            number, aspect=aspect, rung=low, frames=frames, stream=stream, phases=phases
        )
    ]


@settings(max_examples=80, deadline=None)
@given(tracks=TRACKS, moves=MOVES, batch=st.integers(1, 6), order=st.randoms(use_true_random=False))
def test_a_hand_down_fills_every_bucket_and_wastes_nothing_that_fits(tracks, moves, batch, order):
    samples = material(tracks)
    rule = rules(*moves, batch=batch)
    made = hand_down(samples, rule, seed=3)

    shuffled = list(samples)
    order.shuffle(shuffled)
    again = hand_down(shuffled, rule, seed=3)
    assert again.samples == made.samples
    assert again.lost == made.lost

    held = Counter((s.bucket, phase) for s in made.samples for phase in s.phases)
    assert all(n >= minimum_of(bucket, rule) for (bucket, _), n in held.items())

    _assert_spans_are_sound(samples, made)
    if not made.lost and not made.moves:
        assert sorted(made.samples) == sorted(samples)
    for lost in made.lost:
        _assert_fits_no_full_bucket(lost, held, moves)


def _assert_spans_are_sound(samples, made):
    frames_of: dict[tuple[str, str], int] = {}
    for sample in samples:
        at = (sample.clip_id, sample.bucket.rung)
        end = sample.start_frame + sample.bucket.num_frames + sample.tail_frames
        frames_of[at] = max(frames_of.get(at, 0), end)
    sizes = {(s.bucket.rung, s.bucket.width_px, s.bucket.height_px) for s in samples}
    ends: dict[tuple[str, str], int] = {}
    everything = sorted([*made.samples, *made.lost], key=lambda s: (s.clip_id, s.start_frame))
    for sample in everything:
        bucket, at = sample.bucket, (sample.clip_id, sample.bucket.rung)
        assert (bucket.rung, bucket.width_px, bucket.height_px) in sizes
        assert bucket.width_px <= sample.full_width_px
        assert bucket.height_px <= sample.full_height_px
        assert sample.start_frame >= ends.get(at, 0)  # no frame twice
        ends[at] = sample.start_frame + bucket.num_frames
        assert ends[at] + sample.tail_frames <= frames_of[at]
    ids = [sample.sample_id for sample in everything]
    assert len(ids) == len(set(ids))


def _assert_fits_no_full_bucket(lost, held, moves):
    for bucket in {bucket for bucket, _ in held}:
        same_size = (bucket.width_px, bucket.height_px) == (
            lost.bucket.width_px,
            lost.bucket.height_px,
        )
        fits = (
            bucket.rung == lost.bucket.rung
            and bucket.width_px <= lost.full_width_px
            and bucket.height_px <= lost.full_height_px
            and (same_size or "crop" in moves)
            and (bucket.num_frames == 1) == (lost.bucket.num_frames == 1)
            and (
                bucket.num_frames == lost.bucket.num_frames
                if "fewer_frames" not in moves
                else bucket.num_frames <= lost.bucket.num_frames
            )
        )
        is_open = all(held[bucket, phase] > 0 for phase in lost.phases)
        assert not (fits and is_open)
