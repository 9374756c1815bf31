"""What a training host must install: the loader brings in no orchestrator, codec or Arrow."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import wsdata.loader

FORBIDDEN = ("dagster", "av", "cv2", "scenedetect", "vllm", "faiss", "onnxruntime", "boto3",
             "pyarrow")  # fmt: skip


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


def test_torch_is_imported_by_two_modules_alone():
    folder = Path(wsdata.loader.__file__).parent
    importing = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^\s*(import|from) torch", path.read_text(), re.MULTILINE)
    }
    assert importing == {"dataset", "dequantize"}
