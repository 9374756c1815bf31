"""Interlaced frames made whole, one for one, before anything looks at them.

Which frames are asked for belongs to the caller; time stamps stay as they were.
"""

from typing import TYPE_CHECKING, Any

from wsdata.media.reader import Gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from av import AudioFrame, VideoFrame

    Item = VideoFrame | AudioFrame | Gap


def deinterlace(items: "Iterable[Item]") -> "Iterator[Item]":
    """Pass items on; frames from the first interlaced one to the next gap go through a filter.

    The filter looks a frame ahead, so sound may overtake pictures by one frame.
    """
    from av import VideoFrame

    graph: Any = None
    for item in items:
        if isinstance(item, VideoFrame) and (graph is not None or item.interlaced_frame):
            if graph is None or not graph.fits(item):
                if graph is not None:
                    yield from graph.finish()
                graph = _Deinterlacer(item)
            yield from graph.push(item)
            continue
        if isinstance(item, Gap) and graph is not None:
            yield from graph.finish()
            graph = None
        yield item
    if graph is not None:
        yield from graph.finish()


class _Deinterlacer:
    """One run of frames of one size and format."""

    def __init__(self, frame: "VideoFrame") -> None:
        import av.filter

        self._shape = frame.width, frame.height, frame.format.name
        graph = av.filter.Graph()
        graph.threads = 1
        graph.link_nodes(
            graph.add(
                "buffer",
                f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}"
                f":time_base=1/1000:pixel_aspect=1/1:colorspace={int(frame.colorspace)}"
                f":range={int(frame.color_range)}",
            ),
            graph.add("bwdif", "mode=send_frame:deint=interlaced"),
            graph.add("buffersink"),
        ).configure()
        self._graph = graph
        self._stamps: list[int | None] = []

    def fits(self, frame: "VideoFrame") -> bool:
        return self._shape == (frame.width, frame.height, frame.format.name)

    def push(self, frame: "VideoFrame") -> "Iterator[VideoFrame]":
        self._stamps.append(frame.pts)
        self._graph.vpush(frame)
        yield from self._pull()

    def finish(self) -> "Iterator[VideoFrame]":
        self._graph.vpush(None)
        yield from self._pull()

    def _pull(self) -> "Iterator[VideoFrame]":
        import av.error

        while self._stamps:
            try:
                frame = self._graph.vpull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            frame.pts = self._stamps.pop(0)  # the filter counts in halves of its own
            yield frame
