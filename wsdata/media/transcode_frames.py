"""A range of frames out of a stored transcode, without decoding what lies far before it.

What `loader.pixels` is given to read pixels with; the loader itself knows no codec. Frames are
those of `decode.iterate_transcode`, which decodes from the first one on.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.decode import exact_rgb, open_media, told_error

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer

NEAR_FRAMES = 12  # so few are decoded and thrown away sooner than the file's packets are listed


class _Entry(NamedTuple):
    """Where decoding of a frame can begin, and the frame's own time, in the stream's time base."""

    seek_dts: int
    pts: int


def transcode_decoder(content: bytes, frames: range) -> Iterator[NDArray[np.uint8]]:
    """Yield frames [start, stop) of a transcode, RGB of shape (height, width, 3).

    Fewer come where the transcode ends before. Safe to use from threads.

    Args:
        content: The bytes of an mp4 or a PNG that this package wrote.
        frames: Which; their step is 1.

    Raises:
        DecodeFailed: It is not a transcode.
        ValueError: A range that counts backwards, or in strides.
    """
    import av.error
    from av.video.reformatter import VideoReformatter

    if frames.step != 1 or frames.start < 0:
        raise ValueError(f"{frames}: expected consecutive frames from 0 or later on")
    with open_media(content) as container:
        video = container.streams.video[0]
        video.codec_context.thread_count = 1
        reformatter = VideoReformatter()
        try:
            for frame in _wanted(container, video, frames):
                yield exact_rgb(frame, reformatter)
        except av.error.FFmpegError as error:
            raise DecodeFailed(f"transcode does not decode: {told_error(error)}") from error


def _wanted(container: "InputContainer", video: Any, frames: range) -> Iterator["VideoFrame"]:
    entry = _entry(container, video, frames.start) if frames.start > NEAR_FRAMES else None
    if frames.start > NEAR_FRAMES and entry is None:
        return  # it ends before
    if entry is not None:
        container.seek(entry.seek_dts, stream=video, backward=True)
    number = 0 if entry is None else frames.start
    for frame in container.decode(video):
        if entry is not None and frame.pts is not None and frame.pts < entry.pts:
            continue
        if entry is not None and number == frames.start and frame.pts != entry.pts:
            raise DecodeFailed(
                f"transcode: frame {frames.start} has time {entry.pts}, decoding gave {frame.pts}"
            )
        if number >= frames.stop:
            return
        if number >= frames.start:
            yield frame
        number += 1


def _entry(container: "InputContainer", video: Any, number: int) -> _Entry | None:
    """List the packets of a transcode, and say where decoding of one of its frames can begin."""
    listed = [
        (packet.pts, packet.dts, packet.is_keyframe)
        for packet in container.demux(video)
        if packet.pts is not None and packet.dts is not None
    ]
    times = sorted(pts for pts, _, _ in listed)
    if number >= len(times):
        return None
    keys = [(pts, dts) for pts, dts, is_key in listed if is_key and pts <= times[number]]
    if not keys:
        raise DecodeFailed(f"transcode: no key frame lies before frame {number}")
    return _Entry(max(keys)[1], times[number])
