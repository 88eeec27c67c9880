"""The columns of each workload: figure, unit, and whether more is better. They are the same for every system."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One figure. figure: a path of `Result.stat`."""

    figure: str
    title: str
    unit: str = ""
    more_is_better: bool = False
    decides: bool = False  # is compared in the lists of better and worse figures
    scale: float = 1.0

    def as_text(self, value: float) -> str:
        """The value as printed, without unit."""
        return number(value * self.scale)


_RATE = Column("records_per_s", "records/s", more_is_better=True, decides=True)
_ASKED_RATE = Column("records_per_s", "records/s", more_is_better=True)
_MB = Column("mb_per_s", "MB/s", more_is_better=True)
_P50 = Column("response_ms.p50", "p50 ms")
_P99 = Column("response_ms.p99", "p99 ms", decides=True)
_P999 = Column("response_ms.p99.9", "p99.9 ms")
_CPU = Column("cpu_s_per_gb", "CPU-s/GB")
_RSS = Column("rss_peak_bytes", "RSS MB", scale=1e-6)
_GEN = Column("generator_cpu_s", "gen. CPU-s")
_GAP50 = Column("gap_p50_ms", "gap p50 ms", decides=True)
_GAP = Column("gap_max_ms", "gap max ms", decides=True)
_STEADY = Column("steady_gap_max_ms", "undisturbed max ms")
_FAILED = Column("failed", "errors")
_LOAD = (_ASKED_RATE, _P50, _P99, _P999, _CPU, _RSS, _GEN)
_MAX = (_RATE, _MB, _P50, Column("response_ms.p99", "p99 ms"), _CPU, _RSS, _GEN)
_HURT = (_GAP50, _GAP, _STEADY, _FAILED, _ASKED_RATE)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "W1": (Column("response_ms.p50", "p50 ms", decides=True), _P99, _P999, _ASKED_RATE, _CPU, _RSS),
    "W2": _LOAD,
    "W3": _MAX,
    "W4": (Column("mb_per_s", "MB/s", more_is_better=True, decides=True), *_MAX[2:4], _CPU, _RSS, _GEN),
    "W5": _LOAD,
    "W6": (
        Column("delivery_ms.p50", "delivered p50 ms"),
        Column("delivery_ms.p99", "delivered p99 ms", decides=True),
        Column("response_ms.p99", "append p99 ms"),
        Column("tail_extra_p99_ms", "extra p99 ms"),
        _ASKED_RATE,
    ),
    "W7": (
        Column("delivered_mb_per_s", "MB/s out", more_is_better=True, decides=True),
        Column("delivery_ms.p50", "delivered p50 ms"),
        Column("delivery_ms.p99", "delivered p99 ms", decides=True),
        Column("cpu_s", "CPU-s"),
        _RSS,
    ),
    "W8": (
        Column("catch_up_mb_per_s", "read MB/s", more_is_better=True, decides=True),
        Column("undisturbed_ms.p99", "write p99 alone ms"),
        Column("response_ms.p99", "write p99 beside ms"),
        Column("p99_disturbed_over_undisturbed", "p99 ratio", decides=True),
        _RSS,
    ),
    "W10": _HURT,
    "W11": _HURT,
    "W12": _HURT,
    "W13": (
        Column("first_append_s", "first append s", decides=True),
        Column("first_read_ms", "first read ms"),
        Column("gap_max_ms", "gap ms"),
        Column("on_disk_mb", "MB on disk"),
        _FAILED,
    ),
    "W14": _HURT,
    "W19": (
        Column("start_s", "start s", decides=True),
        Column("rss_bytes", "RSS MB", scale=1e-6, decides=True),
        Column("bytes_per_log", "bytes/log"),
        Column("cpu_percent", "CPU %", decides=True),
        Column("files", "files"),
    ),
    "W20": (_RATE, _P50, Column("response_ms.p99", "p99 ms"), _CPU, _RSS, _GEN),
    "W21": _HURT,
    "W22": (
        Column("used_max_mb", "MB on a bookie's disk", decides=True),
        Column("live_max_mb", "live MB"),
        Column("disk_over_live", "disk over live"),
        Column("rss_ratio", "RSS end over start", decides=True),
        Column("read_only", "read-only bookies"),
    ),
    "W23": (Column("mb_per_s", "MB/s", more_is_better=True, decides=True), *_MAX[2:4], _CPU, _RSS, _GEN),
    "W24": (
        Column("scan_mb_per_s", "read MB/s", more_is_better=True, decides=True),
        Column("scan_records_per_s", "records/s", more_is_better=True),
        Column("scan_s", "s"),
        _GEN,
    ),
    "W25": (
        Column("open_s", "open s", decides=True),
        Column("open_without_snapshot_s", "open without a snapshot s"),
        Column("open_ratio", "ratio"),
        Column("records", "records"),
    ),
    "W26": (Column("response_ms.p50", "p50 ms", decides=True), Column("response_ms.p99", "p99 ms"), _MB, _GEN),
    "W27": _HURT,
    "W28": (Column("mb_per_s", "MB/s", more_is_better=True, decides=True), *_MAX[2:4], _CPU, _RSS, _GEN),
    "W29": (
        Column("puts_per_s", "PUT/s"),
        Column("requests_per_gib", "requests/GiB"),
        Column("dollars_per_tb", "$ of requests/TB"),
        Column("space_dollars_per_tb_month", "$ of space/TB and month"),
        Column("counted_mb_per_s", "MB/s"),
        Column("counted_s", "s counted"),
        Column("response_ms.p50", "p50 ms"),
        Column("response_ms.p99", "p99 ms"),
        _RSS,
    ),
    "W30": (Column("p50_us", "p50 µs"), Column("p99_us", "p99 µs")),
    "W31": (
        Column("image_mb", "image MB"),
        Column("load_s", "loaded in s"),
        Column("applied_per_s", "records applied/s"),
        Column("followed_per_s", "decoded and applied/s"),
        Column("snapshot_mb", "snapshot MB"),
    ),
    "W32": (
        Column("commit_p50_ms", "commit p50 ms"),
        Column("append_p50_ms", "append p50 ms"),
        Column("ratio", "ratio"),
        Column("commit_p99_ms", "commit p99 ms"),
        Column("append_p99_ms", "append p99 ms"),
        Column("commit_bytes", "bytes of an operation"),
    ),
    "W33": (
        Column("written_p50_s", "written again p50 s"),
        Column("written_p99_s", "p99 s"),
        Column("written_max_s", "max s"),
        Column("uploaded_s", "all uploaded s"),
    ),
    "W34": (Column("turns", "requests one after another"), Column("requests", "requests"), Column("chunks", "chunks")),
    "W35": (
        Column("repair_mb_per_s", "copied MB/s", more_is_better=True, decides=True),
        Column("copy_mb_per_s", "file copy MB/s"),
        Column("repair_over_copy", "over file copy", more_is_better=True),
        Column("lost_mb", "MB lost"),
        Column("found_s", "found after s"),
        Column("repair_s", "repaired in s"),
        Column("undisturbed_ms.p99", "write p99 before ms"),
        Column("response_ms.p99", "write p99 meanwhile ms"),
        Column("p99_disturbed_over_undisturbed", "p99 ratio", decides=True),
        Column("gap_max_ms", "gap max ms"),
    ),
    "W36": _MAX,
    "W37": (
        Column("restart_s", "started in s", decides=True),
        Column("full_rss_bytes", "RSS MB before", scale=1e-6, decides=True),
        Column("restarted_rss_bytes", "RSS MB after", scale=1e-6),
        Column("written_mb", "MB written"),
        Column("entries", "entries"),
        Column("filled_s", "written in s"),
        Column("read_back_entries", "read back"),
    ),
}


def of(workload: str) -> tuple[Column, ...]:
    """The columns of a workload; a user's own workload has those of a load."""
    return COLUMNS.get(workload, _LOAD)


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size or value else "0"
