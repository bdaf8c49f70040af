"""Documents on disk: Run <-> JSON, atomic replace, upgrades of older versions, JSON Schema."""

from gpubench.store.document import Encoder, checked, dumps, loads, loads_as
from gpubench.store.files import check_folder, check_writable, load, read, replace, save
from gpubench.store.folders import (
    default_results_dir,
    newest,
    newest_first,
    result_name,
    result_path,
    user_data_dir,
)
from gpubench.store.schemas import SCHEMA_NAMES, schema

__all__ = [
    "SCHEMA_NAMES",
    "Encoder",
    "check_folder",
    "check_writable",
    "checked",
    "default_results_dir",
    "dumps",
    "load",
    "loads",
    "loads_as",
    "newest",
    "newest_first",
    "read",
    "replace",
    "result_name",
    "result_path",
    "save",
    "schema",
    "user_data_dir",
]
