#!/bin/sh
# Creates the Python environment of the comparison with PyTorch: .venv in the project's root, or the folder in
# $VENV. Does nothing if the environment is complete. PYTHON=python3.12 selects another Python.
#
#   tests/pytorch/setup.sh
#   .venv/bin/python tests/pytorch/compare.py
#
# PyTorch is PyPI's build for CUDA (0.9 GB to download). Stubs replace 4 GB of NVIDIA's libraries that are not
# needed on a CPU: see cuda_stubs.py.
set -eu

TORCH=2.9.0
JAX=0.10.2

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
venv=${VENV:-$root/.venv}
python=${PYTHON:-python3}

fail() {
    echo "setup.sh: $*" >&2
    exit 1
}

# The stamp file identifies the versions of these scripts, so that a changed script repeats the setup.
stamp=$venv/.complete
recipe=$(cat "$here/setup.sh" "$here/cuda_stubs.py" | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ] && [ -x "$venv/bin/python" ]; then
    echo "$venv is complete"
    exit 0
fi

command -v "$python" >/dev/null ||
    fail "no $python; on Debian: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
    fail "PyTorch $TORCH and JAX $JAX need Python 3.11 to 3.14, and $python is $("$python" -V); select another with PYTHON=..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot create virtual environments; on Debian: apt-get install python3-venv"
if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    fail "$venv is not a virtual environment; select another folder with VENV=..."
fi

# pip's cache is off, because it would keep a second copy of large downloads.
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@"
}

rm -f "$stamp"
# If an interrupted setup has installed pip, the environment is not created again.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
echo "installing numpy, safetensors, tensorboard, ONNX, JAX $JAX and PyTorch $TORCH in $venv; some minutes"

# PyTorch's dependencies are installed first, and then PyTorch with --no-deps. Otherwise pip would download
# NVIDIA's libraries.
install numpy safetensors tensorboard 'onnx>=1.16' 'onnxruntime>=1.17' \
    filelock 'typing_extensions>=4.10' 'sympy>=1.13.3' 'networkx>=2.5.1' jinja2 'fsspec>=0.8.5' 'setuptools<81' "jax==$JAX"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
install --no-deps "torch==$TORCH" || fail "pip could not install torch $TORCH; see above"
if [ -e "$site/torch/lib/libtorch_cuda.so" ]; then
    for tool in cc readelf; do
        command -v "$tool" >/dev/null || fail "no $tool; on Debian: apt-get install gcc libc6-dev binutils"
    done
    # The two CUDA libraries that PyTorch calls even on a CPU; 12 MB.
    install --no-deps nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-cupti-cu12==12.8.90
    "$venv/bin/python" "$here/cuda_stubs.py" "$site/torch/lib"
fi

"$venv/bin/python" -W error::UserWarning - <<'CHECK' || fail "the environment in $venv does not work; remove it and try again"
import numpy, jax, onnx, onnxruntime, safetensors.torch, torch, torch.distributed
from tensorboard.backend.event_processing import event_accumulator
assert torch.distributed.is_gloo_available()
torch.nn.Conv2d(1, 4, 3)(torch.ones(1, 1, 8, 8)).sum().backward()
CHECK

# torch.compile generates C++ code that includes Python.h.
"$venv/bin/python" - <<'CHECK' || fail "torch.compile does not work; on Debian: apt-get install g++ python3-dev"
import torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
CHECK

echo "$recipe" >"$stamp"
echo "$venv is complete: $("$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'), $(du -sh "$venv" | cut -f1)"
