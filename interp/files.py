"""Read the user's own files: tables, JSON lines and plain text, with errors that name the place."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from interp.errors import InputError


def existing(path: str) -> Path:
    """Check that a path exists."""
    if not path:
        raise InputError("the path is empty: name a file, e.g. task.path=prompts.csv")
    found = Path(path).expanduser()
    if not found.exists():
        raise InputError(f"{path}: no such file or folder")
    return found


def text(path: Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def csv(path: str, required: Sequence[str], optional: Sequence[str]) -> pd.DataFrame:
    """Read a CSV file; cells are taken verbatim, so that a leading space is part of an answer.

    Raises:
        InputError: No such file, no rows, a missing column or an empty cell.
    """
    found = existing(path)
    if not text(found).strip():
        raise InputError(f"{path}: the file is empty")
    try:
        table = pd.read_csv(found, dtype=str, keep_default_na=False, encoding="utf-8")
    except pd.errors.ParserError as error:
        raise InputError(f"{path} is not a CSV file: {error}") from error
    if not isinstance(table.index, pd.RangeIndex):
        raise InputError(f"{path}: rows have more cells than the header (quote cells with commas)")
    columns = ", ".join([*required, *(f"{name} (optional)" for name in optional)])
    for name in required:
        if name not in table:
            raise InputError(
                f"{path} has no column '{name}': found {', '.join(table.columns)}; "
                f"expected {columns}"
            )
    if table.empty:
        raise InputError(f"{path}: no rows under the header")
    for name in [*required, *(name for name in optional if name in table)]:
        empty = table.index[table[name].str.strip() == ""]
        if len(empty):
            raise InputError(f"{path}, row {empty[0]}: the cell '{name}' is empty")
    return table


def json_lines(path: str, required: Sequence[str]) -> pd.DataFrame:
    """Read a file of one JSON object a line.

    Raises:
        InputError: No such file, no lines, a line that is no object, or a missing field.
    """
    found = existing(path)
    records = []
    for number, line in enumerate(text(found).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: {error.msg}") from error
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: a JSON object was expected")
        for name in required:
            if not isinstance(record.get(name), str) or not record[name].strip():
                raise InputError(f"{path}, line {number}: no text in the field '{name}'")
        records.append(record)
    if not records:
        raise InputError(f"{path}: the file is empty")
    return pd.DataFrame(records)


def texts(path: str) -> dict[str, str]:
    """Read one text file, or every file of a folder in order of name (hidden ones left out).

    Raises:
        InputError: No such path, or nothing to read.
    """
    found = existing(path)
    files = [found]
    if found.is_dir():
        files = sorted(
            file for file in found.iterdir() if file.is_file() and not file.name.startswith(".")
        )
    documents = {file.name: text(file) for file in files}
    documents = {name: content for name, content in documents.items() if content.strip()}
    if not documents:
        raise InputError(f"{path}: no text in it")
    return documents
