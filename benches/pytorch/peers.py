"""The peers that mpiburn is compared with: PyTorch, run in several ways, and JAX."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from programs import PYTORCH

JAX = Path(__file__).resolve().with_name("train_jax.py")

# The ways of PyTorch that are tried on networks of images, and on mlp. For mlp, channels-last has no meaning.
IMAGES = ("eager", "fused", "channels-last", "compile")
FEATURES = ("eager", "fused", "compile")


@dataclass(frozen=True)
class Peer:
    """A peer: a program, and the options that select a way to run it. `name` is the name of both together."""

    name: str
    program: Path
    options: tuple = ()


def peer_named(name):
    """The peer of that name: jax, one of PyTorch's ways, or several ways joined, such as
    fused+channels-last."""
    return Peer("JAX jit", JAX) if name == "jax" else Peer(f"PyTorch {name}", PYTORCH, ("--how", name))


def custom_peer(programs):
    """The program of --peer, which is run in one way only; None without --peer."""
    return None if programs.pytorch == PYTORCH else Peer(programs.pytorch.name, programs.pytorch)


def versions():
    """The versions of PyTorch and JAX."""
    return {name: importlib.metadata.version(name) for name in ("torch", "jax")}
