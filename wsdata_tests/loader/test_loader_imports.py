"""What a training host must install: the loader brings in no orchestrator and no codec."""

import subprocess
import sys

import pytest

FORBIDDEN = ("dagster", "av", "cv2", "scenedetect", "vllm", "faiss", "onnxruntime", "boto3")


@pytest.mark.parametrize(
    ("module", "also_forbidden"),
    [("wsdata.loader.dataset", ()), ("wsdata.loader.rank_process", ("torch",))],
)
def test_import_brings_in_neither_dagster_nor_media_libraries(module, also_forbidden):
    code = (
        f"import sys, {module}\n"
        f"print([name for name in {(*FORBIDDEN, *also_forbidden)!r} if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
