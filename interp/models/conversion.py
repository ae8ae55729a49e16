"""GGUF files, converted once to a folder of safetensors that loads in a second.

Reading a GGUF file dequantises it and rebuilds its tokenizer, which takes half a minute each time.
The converted folder is kept in the user's cache, under the sha256 of the GGUF file, and its own
sha256 is checked whenever it is used.
"""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import platformdirs

from interp.errors import InputError


def sha256(path: Path) -> str:
    """Hash a file's bytes; large files are read once, as long as they do not change."""
    facts = path.stat()
    return _sha256(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=16)
def _sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Say where converted weights are kept."""
    return Path(platformdirs.user_cache_dir("manyheads"))


def converted(gguf: Path) -> Path:
    """Return a folder with the GGUF file's weights as safetensors, converting them if need be.

    Raises:
        InputError: The file is no readable GGUF file.
    """
    source = sha256(gguf)
    folder = cache_folder() / f"{gguf.stem}-{source[:12]}"
    if not _is_whole(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix="converting-"))
        try:
            _convert(gguf, scratch)
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                os.replace(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if not _is_whole(folder):
            raise OSError(f"{folder} could not be written")
    return folder


def _is_whole(folder: Path) -> bool:
    """Check a converted folder against the hash that was written beside it."""
    try:
        manifest = json.loads((folder / "conversion.json").read_text())
        return manifest["sha256"] == sha256(folder / "model.safetensors")
    except (OSError, ValueError, KeyError):
        return False


def _convert(gguf: Path, folder: Path) -> None:
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source)
    except Exception as error:  # the GGUF reader fails in many ways on a damaged file
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise InputError(f"{gguf} is not a readable GGUF file: {reason[:200]}") from error
    del model.config.quantization_config  # the weights are plain float32 now
    model.config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    manifest = {"source": gguf.name, "sha256": sha256(folder / "model.safetensors")}
    (folder / "conversion.json").write_text(json.dumps(manifest))
