"""Inputs of `one_pass.py`: 1080p24 of real clips at 8 Mb/s, and files of ten minutes and two hours.

Made with the ffmpeg program, once per folder.
"""

import subprocess
from pathlib import Path

MEDIA = Path(__file__).resolve().parents[1] / "samples" / "media"
SEGMENTS = (  # (file, from second, seconds): 60 s, each within one shot or a few long ones
    ("bbb_0_30.webm", 0, 4), ("sintel_trailer_30s.mp4", 3, 5), ("bottle.mp4", 2, 6),
    ("flower.webm", 0, 4), ("pattern_hd.mp4", 0, 5), ("bbb_0_30.webm", 8, 6),
    ("sintel_trailer_30s.mp4", 14, 6), ("spheres.mp4", 0, 5), ("nasa_13013.mp4", 0, 6),
    ("bottle.mp4", 20, 5), ("sintel_trailer_30s.mp4", 22, 5), ("stream_of_water.webm", 0, 3),
)  # fmt: skip
_BT709 = "matrix_coefficients=1:colour_primaries=1:transfer_characteristics=1"


def _ffmpeg(*args: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *args], check=True)  # noqa: S603, S607


def make_minute(folder: Path, seconds: int = 60) -> Path:
    """Make the input: real clips scaled to 1080p24, with grain, h264 at 8 Mb/s, tagged BT.709."""
    path = folder / f"made_{seconds}s.mp4"
    if path.exists():
        return path
    inputs: list[str] = []
    chains: list[str] = []
    for index, (name, start, length) in enumerate(SEGMENTS):
        inputs += ["-ss", str(start), "-t", str(length), "-i", str(MEDIA / name)]
        chains.append(
            f"[{index}:v]scale=1920:1080:flags=bicubic:out_color_matrix=bt709,setsar=1,fps=24,"
            f"format=yuv420p[v{index}]"
        )
    joined = "".join(f"[v{index}]" for index in range(len(SEGMENTS)))
    chains.append(f"{joined}concat=n={len(SEGMENTS)}:v=1:a=0,noise=alls=6:allf=t[v]")
    rate = ["-c:v", "libx264", "-preset", "veryfast", "-b:v", "8M", "-maxrate", "10M"]
    rate += ["-bufsize", "16M", "-g", "48"]
    _ffmpeg(
        *inputs, "-filter_complex", ";".join(chains), "-map", "[v]", "-t", str(seconds),
        *rate, "-bsf:v", f"h264_metadata={_BT709}", str(path.with_suffix(".part.mp4")),
    )  # fmt: skip
    path.with_suffix(".part.mp4").rename(path)
    return path


def make_longer(minute: Path, times: int) -> Path:
    """Make a file that repeats another without encoding it again."""
    path = minute.with_name(f"{minute.stem}_x{times}.mp4")
    if not path.exists():
        _ffmpeg("-stream_loop", str(times - 1), "-i", str(minute), "-c", "copy", str(path))
    return path


def make_hours(folder: Path, hours: float, fps: int) -> Path:
    """Make a long 1080p file that costs little to decode: a still that now and then changes."""
    path = folder / f"made_{hours}h_{fps}fps.mp4"
    if not path.exists():
        picture = f"testsrc2=s=1920x1080:r=1/20:d={hours * 3600},fps={fps}"
        _ffmpeg(
            "-f", "lavfi", "-i", picture, "-c:v", "libx264", "-preset", "ultrafast", "-crf", "30",
            "-g", "250", "-pix_fmt", "yuv420p", str(path),
        )  # fmt: skip
    return path
