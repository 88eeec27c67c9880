"""`dlog bookie fsck` and `convert`: check, rebuild and convert the index of a stopped bookie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from dlog.bookie.index_findings import Finding, is_clean
from dlog.bookie.manifest import IndexKind
from dlog.bookie.options import BookieOptions
from dlog.cli.output import EXIT_FAILED, EXIT_OK, MutatingCommand, json_option, note, say, say_json, size_text
from dlog.io.bookie_dirs import LockedDirs, lock_stopped, paths_of
from dlog.io.disk import RealDisk
from dlog.io.index_conversion import Conversion, convert_dirs
from dlog.io.index_repair import CheckResult, check_dir, repair_dir

_F = TypeVar("_F", bound=Callable[..., Any])
_KINDS = [str(kind) for kind in IndexKind]
_WHEN_UNKNOWN = "run it again: the old index or the new one is there, each whole"


def _directory_options(command: _F) -> _F:
    """The argument DIR and the options that name a bookie's directories."""
    for option in (
        click.option("--ledger-dirs", metavar="DIRS", default="", help="Its ledger directories, if not DIR/ledgers."),
        click.option("--journal-dirs", metavar="DIRS", default="", help="Its journal directories, if not DIR/journal."),
        click.argument("directory", metavar="DIR"),
    ):
        command = option(command)
    return command


def _lock(directory: str, journal_dirs: str, ledger_dirs: str) -> LockedDirs:
    disk = RealDisk()
    options = BookieOptions(dir=directory, journal_dirs=journal_dirs, ledger_dirs=ledger_dirs)
    return lock_stopped(paths_of(options, disk), disk)


@click.command(cls=MutatingCommand, when_unknown=_WHEN_UNKNOWN)
@_directory_options
@click.option("--repair", is_flag=True, help="Rebuild the index from the entry logs where that helps.")
@json_option
def fsck(directory: str, journal_dirs: str, ledger_dirs: str, repair: bool, as_json: bool) -> int:
    """Check the index of a stopped bookie against its entry logs, whose every byte is read. DIR: as --dir of the
    bookie. Exit 1 if something is wrong; notes (the last four) need no action.

    \b
    list       MANIFEST, GONE or MOVED is missing or damaged; nothing else can be checked
    run        an index file, or states of ledgers in an index db, are lost, with keys
               and fences; --repair rebuilds it, and the bookie is read-only then
    chunk      a part of an index file, or entries of an index db, do not verify;
               --repair rebuilds it; with an index db the bookie is read-only then
    nowhere    index rows that point to no place in an entry log; --repair points
    elsewhere  ... or to other bytes             them to a good copy, if there is one
    missing    entries that the index does not lead to; --repair adds them
    stateless  entries of a ledger of which the index has no key and no fence
    log        an entry log is missing or cut off
    entry      entries that do not verify
    contents   a table of contents is damaged; --repair writes it anew
    tail       bytes behind the end of a log, of an interrupted flush
    file       a file that the directory's MANIFEST does not name
    unused     damaged bytes that no index row points to
    header     of a file, that nothing else needs
    """
    dirs = _lock(directory, journal_dirs, ledger_dirs)
    try:
        before = [(repair_dir if repair else check_dir)(dirs.disk, path) for path in dirs.paths.ledgers]
        rebuilt = [one.directory for one in before if one.rebuilt]
        after = [check_dir(dirs.disk, one.directory) if one.rebuilt else one for one in before]
    finally:
        dirs.close()
    findings = _findings(after)
    repaired = _findings(one for one in before if one.rebuilt)
    if as_json:
        say_json(
            {
                "clean": is_clean(findings),
                "findings": [_finding_json(one) for one in findings],
                "rebuilt": rebuilt,
                "before": [_finding_json(one) for one in repaired],
                "ledgers": _ledgers_json(after),
            }
        )
    else:
        _say(findings, repaired, rebuilt, after)
    if not repair and any(one.repairable for one in before):
        note(f"`dlog bookie fsck {directory} --repair` rebuilds the index")
    for one in after:
        if one.limbo:
            note(
                "a part of the index or of a journal was lost: this bookie starts read-only for good and serves what "
                f"is left; replace it (`dlog bookie replace`): {one.directory}"
            )
    return EXIT_OK if is_clean(findings) else EXIT_FAILED


def _findings(results: Iterable[CheckResult]) -> list[Finding]:
    return [finding for one in results for finding in one.findings]


def _say(
    findings: Sequence[Finding], repaired: Sequence[Finding], rebuilt: Sequence[str], results: Sequence[CheckResult]
) -> None:
    for one in repaired:
        say(_finding_text(one))
    for directory in rebuilt:
        say(f"rebuilt: {directory}; what is left:")
    for one in findings:
        say(_finding_text(one))
    ledgers = [summary for one in results for summary in one.ledgers.values()]
    notes = sum(one.is_note for one in findings)
    say(
        f"{len(ledgers):,} ledgers, {sum(one.indexed for one in ledgers):,} entries in the index, "
        f"{sum(one.good for one in ledgers):,} of them good ({size_text(sum(one.bytes for one in ledgers))}), "
        f"{len(findings) - notes:,} findings, {notes:,} notes"
    )


def _finding_text(one: Finding) -> str:
    where = one.file
    if one.ledger >= 0:
        entries = (
            f"entry {one.first}" if one.first == one.last else f"{one.count:,} entries of {one.first} to {one.last}"
        )
        where += f": ledger {one.ledger}, {entries}"
    return f"{one.kind:<9}  {where}: {one.why}"


def _finding_json(one: Finding) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": str(one.kind), "note": one.is_note, "file": one.file, "why": one.why}
    if one.ledger >= 0:
        fields |= {"ledger": one.ledger, "first": one.first, "last": one.last, "count": one.count}
    return fields


def _ledgers_json(results: Iterable[CheckResult]) -> list[dict[str, Any]]:
    return [asdict(one.ledgers[ledger]) for one in results for ledger in sorted(one.ledgers)]


@click.command(cls=MutatingCommand, when_unknown=_WHEN_UNKNOWN)
@_directory_options
@click.option(
    "--to",
    "kind",
    type=click.Choice(_KINDS),
    required=True,
    help="The kind of the new index.",
)
@json_option
def convert(directory: str, journal_dirs: str, ledger_dirs: str, kind: str, as_json: bool) -> int:
    """Convert the index of a stopped bookie to the other kind: `sorted`, or `db` (RocksDB). DIR: as --dir of the
    bookie. Its next start needs [bookie] index of that kind.

    Nothing is lost if it is killed: run it again. It asks for free space in each ledger directory: up to 64 bytes for
    each entry.
    """
    dirs = _lock(directory, journal_dirs, ledger_dirs)
    results: list[Conversion] = []
    try:
        for one in convert_dirs(dirs.disk, dirs.paths.ledgers, IndexKind(kind)):
            results.append(one)
            if not as_json:
                say(_conversion_text(one))
    finally:
        dirs.close()
    if as_json:
        say_json({"index": kind, "directories": [_conversion_json(one) for one in results]})
    if any(one.is_changed for one in results):
        note(f'set [bookie] index = "{kind}" before you start the bookie')
    return EXIT_OK


def _conversion_text(one: Conversion) -> str:
    if not one.is_changed:
        return f"nothing to do: {one.directory}: its index is {one.after}"
    counts = f"{one.ledgers:,} ledgers, {one.entries:,} entries"
    return f"converted: {one.directory}: from {one.before} to {one.after}, {counts}"


def _conversion_json(one: Conversion) -> dict[str, Any]:
    return {
        "directory": one.directory,
        "converted": one.is_changed,
        "before": str(one.before),
        "ledgers": one.ledgers,
        "entries": one.entries,
    }
