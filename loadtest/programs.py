"""Runs a program of this package that measures something by itself, and prints its figures as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.systems.base import CannotRunError


async def figures_of(program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The figures that a module prints. Cancelling kills it. Raises CannotRunError with the end of its stderr."""
    process = await asyncio.create_subprocess_exec(
        *python_module(program, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent(),
        env=module_environment(**environment),
    )
    try:
        printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CannotRunError(f"{program} ended with {process.returncode}: {errors.decode()[-500:].strip()}")
    figures: dict[str, Any] = json.loads(printed)
    return figures
