"""Bytes of everything kept, what a month of them costs, and what it costs to move them."""

from wsdata.observability.capacity import (
    HOUR_S,
    Figure,
    latent_bytes,
    latent_bytes_full_ladder,
    num_clips,
    raw_bytes,
    run_bytes_per_s_with_overhead,
    scaled,
)
from wsdata.observability.capacity_inputs import Assumptions

TB = 1e12
MONTH_S = 30 * 24 * HOUR_S


def raw_cool_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """All raw material in the cool class, before anything is archived."""
    return scaled(raw_bytes(a) / TB, a.cool_usd_per_tb_month)


def raw_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """Licensed material in the cool class, all other in the archive class."""
    size_tb = raw_bytes(a) / TB
    cool = scaled(size_tb * a.licensed_share, a.cool_usd_per_tb_month)
    archive = scaled(size_tb * (1 - a.licensed_share), a.archive_usd_per_tb_month)
    return cool[0] + archive[0], cool[1] + archive[1]


def transcode_bytes(a: Assumptions) -> float:
    """Every rung of what was cut."""
    return a.raw_hours * a.laddered_share * a.transcode_bytes_per_hour


def transcode_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """The permanent floor."""
    return scaled(transcode_bytes(a) / TB, a.cool_usd_per_tb_month)


def latent_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """Training-ready, so in the standard class."""
    return scaled(latent_bytes(a) / TB, a.standard_usd_per_tb_month)


def text_bytes(a: Assumptions) -> float:
    """Captions, embeddings, scores and the catalog."""
    return num_clips(a) * a.text_bytes_per_clip


def text_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """Asked often, so in the standard class."""
    return scaled(text_bytes(a) / TB, a.standard_usd_per_tb_month)


def vault_bytes(a: Assumptions) -> float:
    """The sealed eval vault."""
    return raw_bytes(a) * a.eval_share


def vault_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """In an account of its own, in the standard class."""
    return scaled(vault_bytes(a) / TB, a.standard_usd_per_tb_month)


def frame_pack_bytes(a: Assumptions) -> float:
    """Frame packs of what was cut, while their lease lasts; the reference design has none."""
    return a.raw_hours * a.laddered_share * a.frame_pack_bytes_per_hour


def frame_pack_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """Read by every filter and captioner, so in the standard class."""
    return scaled(frame_pack_bytes(a) / TB, a.standard_usd_per_tb_month)


def kept_bytes(a: Assumptions) -> float:
    """All that stays; frame packs go when their lease ends."""
    return raw_bytes(a) + transcode_bytes(a) + latent_bytes(a) + text_bytes(a) + vault_bytes(a)


def kept_over_raw(a: Assumptions) -> float:
    """The multiplication of raw bytes."""
    return kept_bytes(a) / raw_bytes(a)


def kept_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """A month of all that stays."""
    parts = [
        price(a)
        for price in (
            raw_usd_per_month,
            transcode_usd_per_month,
            latent_usd_per_month,
            text_usd_per_month,
            vault_usd_per_month,
        )
    ]
    return sum(low for low, _ in parts), sum(high for _, high in parts)


STORAGE = (
    Figure(raw_cool_usd_per_month, "USD/month", "1.4"),
    Figure(raw_usd_per_month, "USD/month", "9.1"),
    Figure(transcode_bytes, "bytes", "9.1"),
    Figure(transcode_usd_per_month, "USD/month", "9.1"),
    Figure(latent_bytes, "bytes", "9.1"),
    Figure(latent_usd_per_month, "USD/month", "9.1"),
    Figure(text_bytes, "bytes", "9.1"),
    Figure(text_usd_per_month, "USD/month", "9.1"),
    Figure(vault_bytes, "bytes", "9.1"),
    Figure(vault_usd_per_month, "USD/month", "9.1"),
    Figure(kept_bytes, "bytes", "9.1"),
    Figure(kept_over_raw, "x", "9.1"),
    Figure(kept_usd_per_month, "USD/month", "9.1"),
    Figure(frame_pack_bytes, "bytes"),
    Figure(frame_pack_usd_per_month, "USD/month"),
)

# moving it ------------------------------------------------------------------------------------


def raw_egress_usd(a: Assumptions) -> tuple[float, float]:
    """Moving all raw material to another region: do not."""
    return scaled(raw_bytes(a) / TB, a.egress_usd_per_tb)


def raw_link_days(a: Assumptions) -> float:
    """Days that the licensed part takes over one saturated link."""
    return raw_bytes(a) * a.licensed_share * 8 / a.link_bits_per_s / (24 * HOUR_S)


def sync_egress_usd(a: Assumptions) -> tuple[float, float]:
    """The first `dataset sync` of all latents of the assumed plan."""
    return scaled(latent_bytes(a) / TB, a.egress_usd_per_tb)


def sync_egress_usd_full_ladder(a: Assumptions) -> tuple[float, float]:
    """The same, were all curated hours encoded at every rung."""
    return scaled(latent_bytes_full_ladder(a) / TB, a.egress_usd_per_tb)


def sync_link_days(a: Assumptions) -> float:
    """Days that the first sync takes over one saturated link."""
    return latent_bytes(a) * 8 / a.link_bits_per_s / (24 * HOUR_S)


def remote_read_usd_per_month(a: Assumptions) -> tuple[float, float]:
    """Training across regions without a sync: what the run reads, as egress."""
    month_tb = run_bytes_per_s_with_overhead(a) * MONTH_S / TB
    return scaled(month_tb, a.egress_usd_per_tb)


EGRESS = (
    Figure(raw_egress_usd, "USD", "9.3"),
    Figure(raw_link_days, "days", "1.1"),
    Figure(sync_egress_usd, "USD", "9.3"),
    Figure(sync_egress_usd_full_ladder, "USD"),
    Figure(sync_link_days, "days"),
    Figure(remote_read_usd_per_month, "USD/month", "5.4"),
)
