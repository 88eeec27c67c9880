"""What may be chosen about a bookie, and what it will never exceed."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import GiB, KiB, MiB, at_least_one, check_address, option, port_number


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """Section [bookie]. Sizes in bytes, times in seconds."""

    # who and where
    dir: str = "var/bookie"  # journal in dir/journal, ledgers in dir/ledgers, unless the next two say otherwise
    journal_dir: str = ""
    ledger_dirs: str = ""  # comma-separated; their order and number may never change, the cookie sees to it
    dirs_moved: bool = False  # the directory above all of them was moved: take them where they lie now
    zookeeper: str = "127.0.0.1:2181"
    namespace: str = "/dlog"
    host: str = "127.0.0.1"
    port: int = 3181  # 0: any free port; the bookie then keeps the id its directories already have
    advertise: str = ""  # host:port that others are to connect to, and by default the id; empty: host:port as bound
    bookie_id: str = ""  # empty: host:port
    tcp_only: bool = False  # no Unix socket for who connects from this machine
    metrics_port: int = 0  # 0: off

    # journal
    journal_file_bytes: int = option(64 * MiB, sim=(16 * KiB, 256 * KiB))
    journal_group_bytes_max: int = option(8 * MiB, sim=(4 * KiB, 64 * KiB))  # one write and one fdatasync at most
    journal_waiting_bytes_max: int = option(64 * MiB, sim=(4 * KiB, 1 * MiB))  # beyond it adds get TOO_MANY_REQUESTS
    journal_files_max: int = 6  # so many files behind the mark make a checkpoint due

    # storage
    write_cache_bytes: int = option(64 * MiB, sim=(4 * KiB, 64 * KiB))  # of each half
    write_cache_entries: int = option(200_000, sim=(4, 1000))  # of each half
    read_cache_bytes: int = option(32 * MiB, sim=(0, 64 * KiB))
    read_ahead_bytes: int = 1 * MiB
    read_ahead_entries: int = 256
    entry_log_bytes: int = 512 * MiB  # roll beyond it
    entry_logs_open_max: int = 256  # of each ledger directory: descriptors of the logs that were used last
    checkpoint_s: float = 30.0
    salvage: bool = False  # start in spite of a damaged journal: read-only for good, negatives become IO_ERROR

    # bounds
    reads_waiting_max: int = 10_000  # reads that wait for a disk, all connections together
    ledgers_max: int = 1_000_000
    connections_max: int = 4096  # further ones are closed at once
    receive_bytes_max: int = 256 * MiB  # of frames that are not whole yet, all connections; who goes beyond is closed
    frame_s: float = 30.0  # a first request, or the rest of one, that does not come by then ends its connection
    connection_out_bytes_max: int = 4 * MiB  # a connection's requests rest while so much waits to be sent to it
    connection_reads_max: int = 256  # ... or while so many of its requests have no answer because of a disk

    # disk space
    disk_check_s: float = 5.0
    disk_free_min_bytes: int = 1 * GiB  # read-only below it in any directory
    disk_free_reserve_bytes: int = 256 * MiB  # recovery and high-priority adds are taken down to here

    # ledgers that metadata no longer names
    gc_s: float = 600.0  # between collections; at once and each 30 s while the disk is nearly full; 0: never
    gc_look_s: float = 10.0  # between two marks in metadata, after which ledgers that are new here may be collected
    gc_minor_share: float = 0.2  # after each collection full entry logs are emptied of which less than this share lives
    gc_major_share: float = 0.5  # the same, every gc_major_s and while the disk is nearly full
    gc_major_s: float = 3600.0
    gc_bytes_s: int = 8 * MiB  # that compaction copies a second at most
    gc_reserve_bytes: int = 1 * MiB  # of each ledger directory, held for a collection on a disk without a free byte

    def __post_init__(self) -> None:
        if self.gc_s < 0 or self.gc_look_s <= 0:
            raise ValueError(f"gc_s may not be negative, gc_look_s is above 0: gc_s={self.gc_s}")
        if not 0 <= self.gc_minor_share <= self.gc_major_share < 1:
            raise ValueError("gc_minor_share is at most gc_major_share, and that is below 1")
        if self.gc_reserve_bytes < 0:
            raise ValueError(f"gc_reserve_bytes may not be negative: value={self.gc_reserve_bytes}")
        if self.journal_file_bytes < 16 * KiB:
            raise ValueError(f"journal_file_bytes is at least {16 * KiB}: value={self.journal_file_bytes}")
        if self.disk_free_reserve_bytes > self.disk_free_min_bytes:
            raise ValueError("disk_free_reserve_bytes may not exceed disk_free_min_bytes")
        port_number(self, "port", "metrics_port")
        at_least_one(
            self, "checkpoint_s", "disk_check_s", "frame_s", "connections_max", "ledgers_max", "reads_waiting_max"
        )
        at_least_one(self, "journal_group_bytes_max", "journal_waiting_bytes_max", "journal_files_max")
        at_least_one(
            self, "write_cache_bytes", "write_cache_entries", "entry_log_bytes", "receive_bytes_max", "gc_bytes_s"
        )
        at_least_one(self, "entry_logs_open_max")
        at_least_one(self, "connection_out_bytes_max", "connection_reads_max", "read_ahead_bytes", "read_ahead_entries")
        check_address(self.advertise)
