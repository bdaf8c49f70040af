"""The storage of documents: conversion between a Run and JSON, atomic replacement of files, upgrades of older
versions, and JSON Schema.

All code that reads or writes a gpubench document does it here.
"""

from gpubench.result.store.document import (
    PART_SUFFIX,
    check_run,
    dumps,
    loads,
    loads_as,
    part_of,
    schema,
)
from gpubench.result.store.files import (
    cannot_save,
    check_folder,
    check_part,
    check_result_path,
    check_writable,
    default_results_dir,
    is_result_name,
    load,
    newest,
    newest_first,
    read,
    replace,
    rescue,
    result_name,
    result_path,
    save,
    user_data_dir,
)
from gpubench.result.store.journal import Journal, Lock, NoLocks, lock_result, part_to_resume, set_aside

__all__ = [
    "PART_SUFFIX",
    "Journal",
    "Lock",
    "NoLocks",
    "cannot_save",
    "check_folder",
    "check_part",
    "check_result_path",
    "check_run",
    "check_writable",
    "default_results_dir",
    "dumps",
    "is_result_name",
    "load",
    "loads",
    "loads_as",
    "lock_result",
    "newest",
    "newest_first",
    "part_of",
    "part_to_resume",
    "read",
    "replace",
    "rescue",
    "result_name",
    "result_path",
    "save",
    "schema",
    "set_aside",
    "user_data_dir",
]
