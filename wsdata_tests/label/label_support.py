"""Real clips as rows and frame packs, and a caption server on a real socket."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import cv2
import numpy as np

from wsdata.preprocess.framepack import FramePack, PackedFrame, write_framepack
from wsdata_tests.orders_support import order_of, put_rows, run_step

MEDIA = Path(__file__).parents[2] / "samples" / "media"


@contextmanager
def server(answers, models_status=200):
    """A caption server that gives (status, content, headers) in turn, the last one for ever."""
    asked: list[dict] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._reply(models_status, {"data": []})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                asked.append(
                    {"path": self.path, "key": self.headers["Authorization"], "body": body}
                )
                status, content, *headers = answers[min(len(asked), len(answers)) - 1]
            self._reply(status, {"choices": [{"message": {"content": content}}]}, *headers)

        def _reply(self, status, payload, headers=None):
            data = json.dumps(payload).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/v1", asked
        listening.shutdown()
        thread.join()


def real_pack(name: str, seconds: float = 2.0) -> FramePack:
    """The first seconds of a sample, thinned: four colour frames and four luma pairs."""
    with av.open(str(MEDIA / name)) as container:
        frames = []
        for frame in container.decode(video=0):
            if frame.time is not None and frame.time >= seconds:
                break
            frames.append((frame.time or 0.0, frame.to_ndarray(format="rgb24")))
    colors = [_fit(frames[(2 * k + 1) * len(frames) // 8][1], 320) for k in range(4)]
    if len(frames) == 1:
        return FramePack(colors=[PackedFrame(0.0, colors[0])], luma_pairs=[])
    starts = [k * (len(frames) - 2) // 4 for k in range(4)]
    pairs = [tuple(_luma(frames[at]) for at in (start, start + 1)) for start in starts]
    return FramePack(
        colors=[PackedFrame(float(k), color) for k, color in enumerate(colors)], luma_pairs=pairs
    )


def _luma(frame) -> PackedFrame:
    time_s, pixels = frame
    return PackedFrame(time_s, cv2.cvtColor(_fit(pixels, 256), cv2.COLOR_RGB2GRAY))


def _fit(pixels: np.ndarray, side_px: int) -> np.ndarray:
    scale = side_px / max(pixels.shape[:2])
    size = (round(pixels.shape[1] * scale), round(pixels.shape[0] * scale))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


class Drop:
    """A drop of clips with packs in a store, and the label steps run over it one by one."""

    def __init__(self, store, partition: str = "crawl.web.20261101.001") -> None:
        self.store = store
        self.partition = partition
        self.refs: dict[str, list] = {}

    def put(self, table: str, rows: list[dict]) -> None:
        """Make rows the live object of a table."""
        self.refs[table] = [put_rows(self.store, table, rows, self.partition)]

    def order(self, step, *, params=None, settings=None):
        """An order over whatever of the step's inputs was put or made."""
        inputs = {wanted.table: self.refs[wanted.table] for wanted in step.inputs}
        return order_of(step, self.partition, inputs, params=params, settings=settings)

    def run(self, step, *, params=None, settings=None):
        """Run a step as a pool would, and make what it made live."""
        report = run_step(step, self.order(step, params=params, settings=settings), self.store)
        for table, ref in report.objects.items():
            self.refs[table] = [ref]
        return report


def put_pack(store, name: str, pack: FramePack) -> dict:
    """Store a pack, and return the columns that name it."""
    from wsdata.digest import sha256_bytes

    data = write_framepack(pack)
    key = f"derived/frame_packs/{name}"
    store.put(key, data)
    return {"key": key, "sha256": sha256_bytes(data), "size_bytes": len(data)}
