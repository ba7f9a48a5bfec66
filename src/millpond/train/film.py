"""A film of one greedy episode, as GIF or MP4."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.settings import Settings
from ..engine.trees import part
from ..envs import Env, HostVector
from ..envs.hosted import HostedVector
from ..errors import BadConfig, RunFailed
from ..extras import not_installed, require
from .evaluate import EVALUATION_SEED, Referee


def film(settings: Settings, params: Any, path: Path, turns: int = 1000, fps: int = 12) -> int:
    """Film one greedy episode of the first member's policies; returns the number of pictures."""
    kind = path.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise BadConfig(f"film: expected the name of a .gif or an .mp4, got '{path.name}'")
    encoder = find_ffmpeg() if kind == ".mp4" else ""
    if kind == ".gif":
        require("a film", "view", "PIL")
    pictures = play(settings, params, turns)
    if kind == ".gif":
        write_gif(path, pictures, fps)
    else:
        write_mp4(path, pictures, fps, encoder)
    return len(pictures)


def play(settings: Settings, params: Any, turns: int) -> list[np.ndarray]:
    """Pictures uint8[h, w, 3] of one greedy episode, from its first state to its last."""
    world: Any = settings.world
    if isinstance(world, Env):
        vector: HostVector = HostedVector(world, 1, EVALUATION_SEED)
    else:
        if any(field.name == "film" for field in dataclasses.fields(world)):
            world = dataclasses.replace(world, film=True)  # so that it can render
        vector = world.vector(1, EVALUATION_SEED)
    pictures = [vector.render()]
    referee = Referee(dataclasses.replace(settings, members=1, eval_turns=turns), 1)
    params = part(params, slice(world.num_agents))
    referee.follow(vector, params, lambda: pictures.append(vector.render()))
    return pictures


def write_gif(path: Path, pictures: Sequence[np.ndarray], fps: int) -> None:
    """Write a GIF that repeats for ever."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        images[0].save(
            path, save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0
        )
    except OSError as error:
        raise RunFailed(f"could not write the film {path}: {error}") from error


def write_mp4(path: Path, pictures: Sequence[np.ndarray], fps: int, encoder: str) -> None:
    """Write H.264 with ffmpeg, which requires even sides."""
    height, width = (side - side % 2 for side in pictures[0].shape[:2])
    raw = b"".join(np.ascontiguousarray(p[:height, :width]).tobytes() for p in pictures)
    size = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps)]
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [encoder, "-y", "-loglevel", "error", *size, "-i", "-", "-pix_fmt", "yuv420p"]
    done = subprocess.run([*command, str(path)], input=raw, capture_output=True, timeout=600)
    if done.returncode:
        raise RunFailed(f"ffmpeg could not write {path}: {done.stderr.decode().strip()}")


def find_ffmpeg() -> str:
    """The path of the system's ffmpeg, or that of the extra `film`."""
    if found := shutil.which("ffmpeg"):
        return found
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        other = "install ffmpeg itself, or write a .gif"
        raise not_installed("an .mp4", "film", "ffmpeg", otherwise=other) from error
    return imageio_ffmpeg.get_ffmpeg_exe()
