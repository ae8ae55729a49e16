"""Models are loaded once for all tests.

`interp` is imported inside the fixtures only: what is imported before the tests are collected
escapes the checks of types and shapes (`--jaxtyping-packages` in pyproject.toml).
"""

from collections.abc import Callable
from copy import copy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
"""Real data and models that lie beside the checkout on some machines; nothing is copied from it."""
FOLDERS = ("stories260k", "aren_transliteration")
CHOICES = {"device": "cpu", "dtype": "float32", "prepend_bos": "auto", "truncation": "error"}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny models are fastest on one thread, and several test processes do not fight."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> None:
    """Run in an empty folder, with a fresh Hydra."""
    from hydra.core.global_hydra import GlobalHydra

    monkeypatch.chdir(tmp_path)
    GlobalHydra.instance().clear()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    return SHARED


@pytest.fixture(scope="session")
def model() -> Callable[..., Any]:
    """Load a model by name, the first time it is asked for.

    `tiny_*`; `smollm2` and `minilm`, skipped where their package is not installed; the folders of
    ../shared/models, skipped where there are none; `custom_decoder`, `custom_encoder` and
    `custom_encoder_decoder`, made of interp.transformer with random weights.
    """

    @cache
    def load(name: str, padding_side: str = "right") -> Any:
        choices = CHOICES | {"padding_side": padding_side}
        if name.startswith("tiny_"):
            from interp.models.tiny import tiny

            return tiny(name, weights_seed=0, **choices)
        if name.startswith("custom_"):
            return random_transformer(name, padding_side)
        if name in FOLDERS:
            from interp.models.pretrained import pretrained

            folder = SHARED / "models" / name
            if not folder.is_dir():
                pytest.skip(f"{folder} is not there")
            return pretrained(str(folder), **choices)
        from interp.models.bundled import PACKAGES, bundled

        if padding_side == "left" and name == "smollm2":  # too large to be loaded twice
            other = copy(load(name))
            other.padding_side = padding_side
            return other
        if find_spec(PACKAGES[name].file.partition("/")[0]) is None:
            pytest.skip(f"{PACKAGES[name].requirement} is not installed")
        return bundled(name, **choices)

    return load


def random_transformer(name: str, padding_side: str) -> Any:
    """Make a Transformer that reads bytes; the decoder has grouped heads, the encoder norm=post."""
    import torch

    from interp.models.custom import from_transformer
    from interp.models.text import byte_tokenizer
    from interp.transformer import Transformer, TransformerConfig

    kind = name.removeprefix("custom_")
    special = {"decoder": {"n_kv_heads": 2}, "encoder": {"norm": "post"}}.get(kind, {})
    config = TransformerConfig(
        kind, d_vocab=260, d_model=32, n_layers=3, n_heads=4, n_ctx=128, d_mlp=64, **special
    )
    module = Transformer(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # biases start at 0 and would hide mistakes
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    frame = "none" if kind == "decoder" else "both"
    return from_transformer(module, byte_tokenizer(frame), name=name, padding_side=padding_side)
