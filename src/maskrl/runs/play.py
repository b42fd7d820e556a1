"""Show an agent's play and its encoder's input side by side: in a window, or as a video if there is no screen."""

import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.envs.gym import in_colour
from maskrl.recipes.schema import Recipe
from maskrl.runs.evaluate import Episode
from maskrl.runs.policy import Policy

LEAST = 256  # minimum height in pixels
Image = NDArray[np.uint8]  # (H, W, 3)


def images(
    policy: Policy, recipe: Recipe, *, episodes: int, seed: int, returns: list[float]
) -> Generator[tuple[Image, float], None, None]:
    """Yield an image per decision, and the images per second. Appends the returns of episodes to `returns`."""
    with closing(recipe.env.make(seed=recipe.seed, training=False)) as env:
        fps = float(env.metadata["render_fps"])
        for number in range(episodes):
            episode = Episode(env, number, seed)
            while not episode.ended:
                yield beside(env.render(), seen(policy, episode.obs)), fps
                episode.step(episode.chosen_by(policy.network.act), recipe.evaluation.epsilon)
            returns.append(episode.total)


def seen(policy: Policy, obs: NDArray[np.uint8]) -> Image:
    """The newest frame of a stack, as the encoder sees it: (h, w, 3)."""
    channels = policy.frame_shape[0]
    frame: NDArray[np.uint8] = policy.network.centre(torch.from_numpy(obs[None]))[0, -channels:].numpy()
    return in_colour(frame.transpose(1, 2, 0), 1)


def beside(picture: object, frame: Image) -> Image:
    """Both side by side, at least 256 pixels high. The frame is enlarged by a whole factor, with black around it."""
    left = in_colour(np.asarray(picture, np.uint8), LEAST)
    times = max(1, left.shape[0] // frame.shape[0])
    large = frame.repeat(times, axis=0).repeat(times, axis=1)[: left.shape[0]]
    right = np.zeros((left.shape[0], large.shape[1] + 8, 3), np.uint8)
    top = (left.shape[0] - large.shape[0]) // 2
    right[top : top + large.shape[0], 8:] = large
    return np.concatenate([left, right], axis=1)


def has_screen() -> bool:
    """Whether this machine can open a window."""
    shown = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and importlib.util.find_spec("pygame") is not None


def show(frames: Iterator[tuple[Image, float]], title: str, *, is_closed: Callable[[], bool] | None = None) -> bool:
    """Show images in a window at their speed; returns whether the user closed it early."""
    import pygame

    pygame.display.init()
    try:
        window, clock = None, pygame.time.Clock()
        for image, fps in frames:
            if window is None:
                window = pygame.display.set_mode((image.shape[1], image.shape[0]))
                pygame.display.set_caption(title)
            window.blit(pygame.surfarray.make_surface(image.swapaxes(0, 1)), (0, 0))
            pygame.display.flip()
            clock.tick(fps)
            if any(event.type == pygame.QUIT for event in pygame.event.get()) or (
                is_closed is not None and is_closed()
            ):
                return True
        return False
    finally:
        pygame.display.quit()
