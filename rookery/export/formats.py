"""File formats of exported policies: how each is written, and how it is run for verification."""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from rookery.errors import BadInput, missing_extra
from rookery.export.step import Interface

Arrays = list[np.ndarray]
Run = Callable[[Sequence[np.ndarray]], Arrays]
"""Runs one step: from the list of inputs to the list of outputs."""


class Onnx:
    """ONNX, for ONNX Runtime and others."""

    file = "policy.onnx"

    def check(self) -> None:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise missing_extra("format onnx", "export")

    def write(self, program: ExportedProgram, interface: Interface, path: Path) -> None:
        with silenced():
            written = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[port.name for port in interface.inputs],
                output_names=[port.name for port in interface.outputs],
            )
            assert written is not None
            written.save(path, external_data=False)

    def load(self, path: Path) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        names = [port.name for port in session.get_inputs()]

        def run(inputs: Sequence[np.ndarray]) -> Arrays:
            return list(session.run(None, dict(zip(names, inputs, strict=True))))

        return run


class LibTorch:
    """AOTInductor package for C++, loaded by AOTIModelPackageLoader."""

    file = "policy.pt2"
    settings: dict[str, Any] = {  # noqa: RUF012
        # No instructions of this processor: the file runs on any of the same architecture, and
        # the large operations are LibTorch's own, which choose instructions when they run.
        "cpp.march": "",
        "cpp.simdlen": 1,
        # Precompiled headers only help where many models are compiled.
        "aot_inductor.precompile_headers": False,
    }

    def check(self) -> None:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise BadInput(
                "format libtorch needs a C++ compiler: install g++ or name one in CXX, or use"
                " --format onnx only"
            ) from None

    def write(self, program: ExportedProgram, interface: Interface, path: Path) -> None:
        import torch._inductor

        with silenced(), own_cache():
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=self.settings
            )

    def load(self, path: Path) -> Run:
        import torch._inductor

        with silenced():
            loaded = torch._inductor.aoti_load_package(str(path), run_single_threaded=True)

        def run(inputs: Sequence[np.ndarray]) -> Arrays:
            outputs = loaded.loader.run([torch.from_numpy(x) for x in inputs])
            return [x.numpy() for x in outputs]

        return run


FORMATS: dict[str, Onnx | LibTorch] = {"onnx": Onnx(), "libtorch": LibTorch()}
"""The file formats. `check` raises BadInput if a needed package or program is missing, `write`
writes the traced step to a file, `load` returns it as a user of the file runs it."""


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress log lines and warnings of the exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def own_cache() -> Iterator[None]:
    """Give the compiler a temporary cache folder."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = {key: value for key, value in os.environ.items() if key == name}
    with tempfile.TemporaryDirectory(prefix="rookery-export-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]
            os.environ.update(before)
