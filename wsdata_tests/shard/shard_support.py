"""Orders and stored transcodes for tests of the shard steps, built by hand."""

import io
from fractions import Fraction

import av
import numpy as np

from wsdata import orders, tables
from wsdata.digest import sha256_bytes
from wsdata.records import ObjectRef, Order, table_key


def moving_gradient(num_frames, height, width, *, seed=0):
    """Smooth frames that change in time, uint8 (t, h, w, c)."""
    t, y, x = np.meshgrid(np.arange(num_frames), np.arange(height), np.arange(width), indexing="ij")
    planes = [128 + 100 * np.sin((x * a + y * b) / 40 + t * c / 7 + seed) for a, b, c in
              ((1, 0.3, 1), (0.2, 1, -1), (0.5, 0.5, 2))]  # fmt: skip
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def mp4_of(frames_thwc):
    """Encode frames as a small H.264 file in BT.709 limited range."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=24, options={"crf": "12", "threads": "1"})
        stream.height, stream.width = frames_thwc.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, 24)
        for frame_hwc in frames_thwc:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_hwc), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def put_rows(store, table, partition, records, *, version="1"):
    """Store rows as a live object would be, and return its ref."""
    data = tables.to_parquet(tables.rows_of(table, records))
    sha256 = sha256_bytes(data)
    store.put(table_key(sha256), data)
    return ObjectRef(
        table=table,
        partition=partition,
        version=version,
        version_digest=f"vd-{version}",
        sha256=sha256,
        num_rows=len(records),
    )


def order_of(step, partition, *, params, inputs=None, context=None, settings=None):
    """A work order for a step as `build_order` would make it."""
    return Order(
        stage=step.stage,
        step=step.name,
        partition=partition,
        code_version=step.code_version,
        params=params,
        inputs=inputs or {},
        context=context or {},
        settings=settings or {},
        tables=step.tables,
    )


def execute(step, order, store):
    """Run an order, and return its report with the rows by table."""
    report = orders.execute(order, step.function, store, progress=lambda *_: None)
    rows = {
        table: tables.from_parquet(table, store.get(ref.key))
        for table, ref in report.objects.items()
    }
    return report, rows
