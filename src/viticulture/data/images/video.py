# SPDX-License-Identifier: Apache-2.0
"""Read the frames of a video clip by time step, and write a clip of pictures; both by PyAV (extra `video`)."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ...disk import replacing
from ...errors import UserError
from ...text import log
from .decode import Unreadable
from .format import Pixels

ENDINGS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv")
TICK = Fraction(1, 1000)  # seconds; times in a written clip are whole multiples
NEEDS = "video needs PyAV, not installed; run: pip install 'viticulture[video]'"


def is_clip(name: str) -> bool:
    """Return whether a file name ends like a video's."""
    return name.lower().endswith(ENDINGS)


def time_step(every: str | float) -> float:
    """Return the seconds of a time step such as 1s, 0.2s or 0.2. Raises: UserError for anything else."""
    if match := re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*s?\s*", str(every)):
        return float(match[1])
    raise UserError(f"a time step between frames is in seconds, such as 1s or 0.2s (0s: every frame), got {every!r}")


def check_video() -> None:
    """Raises: UserError if the extra `video` is not installed."""
    if find_spec("av") is None:
        raise UserError(NEEDS)


def frames(path: Path, every: float) -> Iterator[tuple[float | None, Pixels | Unreadable]]:
    """Yield frames of a clip, upright, RGB, each with its seconds from the clip's start.

    Frames keep their own times, so a variable frame rate needs nothing: the first frame of each time step is used, and
    a step without one yields nothing. A frame that cannot be decoded is `Unreadable`, and so, without seconds, is the
    rest of a clip that cannot be read further, and a clip without frames.

    Args:
        every: length of a time step, seconds; 0 for every frame.
    """
    steps = set[float]()  # that have a frame; frames around a damaged one may come out of order
    try:
        for seconds, frame in _decoded(path):
            if (step := (seconds + 1e-6) // every if every else len(steps)) not in steps:
                steps.add(step)
                yield seconds, frame if isinstance(frame, Unreadable) else _pixels(path, frame)
        if not steps:
            raise Unreadable(str(path), "the clip holds no frames")
    except Unreadable as error:
        yield None, error


def _decoded(path: Path) -> Iterator[tuple[float, Any]]:
    """Yield every frame as PyAV has it, or why it is damaged. Raises: Unreadable if no more can be read."""
    if find_spec("av") is None:
        raise Unreadable(str(path), NEEDS)
    import av

    try:
        with av.open(str(path)) as clip:
            if not clip.streams.video:
                raise Unreadable(str(path), "the clip holds no video")
            stream, start, last, seconds = clip.streams.video[0], None, 0, 0.0
            stream.thread_type = "AUTO"
            for packet in clip.demux(stream):
                decoded: list[tuple[int | None, Any]]
                try:
                    decoded = [(frame.pts if frame.pts is not None else frame.dts, frame) for frame in packet.decode()]
                except av.FFmpegError as error:
                    at = last if packet.pts is None else packet.pts
                    decoded = [(at, Unreadable(str(path), f"broken: {error.strerror or error}"))]
                for ticks, frame in decoded:
                    if ticks is None or stream.time_base is None:
                        raise Unreadable(str(path), "the frames of the clip have no times")
                    start, last = ticks if start is None else start, ticks
                    seconds = float((ticks - start) * stream.time_base)
                    yield seconds, frame
            whole = (clip.duration or 0) / av.time_base
            if start is not None and whole - seconds > max(1, whole / 10):
                log(f"note     {path} ends after {seconds:.1f} of {whole:.1f} s; was it copied whole?")
    except (av.FFmpegError, OSError) as error:
        raise Unreadable(str(path), f"broken: {error.strerror or error}") from error


def _pixels(path: Path, frame: Any) -> Pixels | Unreadable:
    if frame.is_corrupt:
        return Unreadable(str(path), "broken: the frame is damaged")
    turned: Pixels = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))  # counterclockwise
    return np.ascontiguousarray(turned)


@contextmanager
def writing_clip(path: Path) -> Iterator[Callable[[Pixels, float], None]]:
    """Write pictures as an .mp4 (H.264), whole or not at all, by calling the function with each [H, W, 3] uint8 and the
    seconds at which it appears; the first one's size is the clip's."""
    import av

    with replacing(path) as part, av.open(str(part), "w", format="mp4") as clip:
        streams: list[Any] = []

        def add(picture: Pixels, seconds: float) -> None:
            if not streams:
                stream: Any = clip.add_stream("h264", rate=1 / TICK)
                stream.height, stream.width = (side + side % 2 for side in picture.shape[:2])  # chroma has half
                stream.pix_fmt, stream.codec_context.time_base = "yuv420p", TICK
                streams.append(stream)
            frame: Any = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame = frame.reformat(width=streams[0].width, height=streams[0].height)
            frame.pts, frame.time_base = round(seconds / TICK), TICK
            clip.mux(streams[0].encode(frame))

        yield add
        for stream in streams:
            clip.mux(stream.encode())
