from wsdata_tests.curate.catalog_support import CRAWL, Catalog, asset_id, frame_hash, make_recipe
from wsdata_tests.curate.test_cut import cut, key, reasons

RECIPE = make_recipe(
    streams={"video": {}, "generated": {"generated": True}},
    phases=[{"name": "p", "steps": 1, "rungs": ["256p"], "tiers": ["T0"],
             "weights": {"video": 0.98, "generated": 0.02}}],
)  # fmt: skip


def _register(catalog: Catalog, name: str, *, registration="registered-1", frames=5, quality=None):
    for index in range(frames):
        catalog.add(
            "generated_prints", registration, generator="model-x 2", item_id=name,
            frame_index=index, hash=frame_hash(f"{name} {index}"), quality=quality,
        )  # fmt: skip


def _streams(result) -> dict[str, str]:
    return dict(result.manifest["asset_id", "stream"].unique().rows())


def _catalog() -> Catalog:
    catalog = Catalog()
    catalog.add_asset("dream", drop=CRAWL)
    catalog.add_asset("street", drop=CRAWL)
    return catalog


def test_what_a_registered_generator_made_goes_to_its_stream_alone():
    catalog = _catalog()
    before = cut(catalog, RECIPE)
    assert set(_streams(before).values()) == {"video"}
    _register(catalog, "dream")  # after the drop, and yet it re-tags
    after = cut(catalog, RECIPE)
    assert _streams(after) == {asset_id("dream"): "generated", asset_id("street"): "video"}
    assert after.generated["generator"].to_list() == ["model-x 2"]
    assert after.hits.is_empty()
    assert reasons(cut(catalog)) == {key("dream"): "no_stream"}


def test_one_frame_in_common_re_tags_nothing():
    catalog = _catalog()
    _register(catalog, "dream", frames=1)
    assert cut(catalog, RECIPE).generated.is_empty()


def test_registered_frames_with_little_in_them_have_no_vote():
    catalog = _catalog()
    _register(catalog, "dream", quality=10)
    assert cut(catalog, RECIPE).generated.is_empty()


def test_registrations_in_any_order_and_number_give_the_same():
    one, two = _catalog(), _catalog()
    _register(one, "dream")
    _register(one, "street", registration="registered-2")
    _register(two, "street", registration="registered-1")
    _register(two, "dream", registration="registered-2")
    _register(two, "dream", registration="registered-3")
    assert cut(one, RECIPE).manifest.equals(cut(two, RECIPE).manifest)
    assert cut(one, RECIPE).generated.equals(cut(two, RECIPE).generated)


def test_half_of_the_clips_take_the_others_along():
    catalog = Catalog()
    catalog.add_asset("dream", drop=CRAWL, clips=((0.0, 5.0), (5.0, 10.0)))
    _register(catalog, "dream")
    assert cut(catalog, RECIPE).generated.height == 2
