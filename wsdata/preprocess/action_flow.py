"""How a clip moves from frame to frame, by dense optical flow over its smallest rung.

The rung is decoded in the sandboxed child. What the series is compared with belongs to
`filters.actions`.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.decode import open_media

SIDE_PX = 192  # long side at which flow is measured: 1 ms a frame


def flow_job(_args: dict[str, Any], source: BinaryIO, _out_dir: Path) -> dict[str, Any]:
    """Measure the flow of one transcode; runs in the sandboxed child.

    Returns:
        ``flow``: of each frame, the mean length of the flow from the frame before it, as a share
        of the width; the first frame's is that of the second.

    Raises:
        DecodeFailed: It does not decode.
    """
    import av.error

    with open_media(source) as container:
        video = container.streams.video[0]
        video.codec_context.thread_count = 1
        try:
            return {"flow": _flow_lengths(_luma(frame) for frame in container.decode(video))}
        except av.error.FFmpegError as error:
            raise DecodeFailed(f"the transcode does not decode: {error.strerror}") from error


def _luma(frame: Any) -> NDArray[np.uint8]:
    import cv2

    planes = frame.to_ndarray()[: frame.height, : frame.width]
    scale = SIDE_PX / max(frame.width, frame.height)
    size = max(16, round(frame.width * scale)), max(16, round(frame.height * scale))
    return cv2.resize(planes, size, interpolation=cv2.INTER_AREA)  # pyright: ignore[reportReturnType]


def _flow_lengths(pictures: Any) -> list[float]:
    import cv2

    cv2.setNumThreads(1)
    lengths: list[float] = []
    before: NDArray[np.uint8] | None = None
    for picture in pictures:
        if before is not None:
            # made anew for each pair: no pair can then depend on the one before it
            engine = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
            flow_hwc = engine.calc(before, picture, None)  # pyright: ignore[reportCallIssue, reportArgumentType]
            size_hw = np.hypot(flow_hwc[..., 0], flow_hwc[..., 1])
            lengths.append(round(float(size_hw.mean()) / picture.shape[1], 9))
        before = picture
    return [*lengths[:1], *lengths]
