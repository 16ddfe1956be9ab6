"""Compile the native engine when the package is built or installed; without a compiler go on, and say so once."""

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledEngine(BuildHookInterface):
    """Adds the compiled engine to the wheel, which then is for one platform; it needs nothing of Python's ABI."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the engine; a wheel without it is pure Python, and PyTorch does all the work.

        With ``COTERIE_COMPILE=no`` somebody else does, as ``make setup`` does while pip downloads.
        """
        if os.environ.get("COTERIE_COMPILE") == "no":
            return
        path = Path(self.root, "src", "coterie", "native", "compile.py")
        spec = importlib.util.spec_from_file_location("coterie_compile", path)
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        try:
            made = compiling.FILE if compiling.is_current() else compiling.compile_engine()
        except compiling.CannotCompile as error:
            self.app.display_warning(f"coterie without its compiled engine, 2 to 7 times slower: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(str(made.relative_to(self.root)))
