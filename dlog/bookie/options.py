"""Configuration of a bookie, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.bookie.manifest import IndexKind
from dlog.model.location import DEFAULT_LOCATION, check_location_name
from dlog.options import GiB, KiB, MiB, check_address, check_positive, option, port_number


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """Section [bookie]. Sizes in bytes, times in seconds."""

    # identity and location
    dir: str = option("var/bookie", "directory of the bookie: journal in DIR/journal, ledgers in DIR/ledgers")
    journal_dirs: str = option(
        "",
        "directories of the journals, separated by commas, if not below dir; best each on a device of its own. A "
        "ledger uses one of them. They are added and left out only at the end of the list",
    )
    ledger_dirs: str = option(
        "", "directories of the ledgers, separated by commas; their number and order may never change"
    )
    dirs_moved: bool = option(False, "start once with true after all directories were moved together to another path")
    zookeeper: str = option(
        "127.0.0.1:2181", "addresses of ZooKeeper, host:port separated by commas, and a path if the cluster has one"
    )
    namespace: str = option("/dlog", "path in ZooKeeper below which the streams are")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(
        3181, "port to listen on; 0: any free one, and the bookie keeps the id that its directories have"
    )
    advertise: str = option("", "host:port that others connect to; empty: host and port as bound")
    bookie_id: str = option("", "name of the bookie in ledger metadata; empty: host:port")
    rack: str = option(DEFAULT_LOCATION.rack, "rack that the bookie stands in, for placement of copies")
    region: str = option(DEFAULT_LOCATION.region, "region that the bookie stands in, for placement of copies")
    tcp_only: bool = option(False, "offer no Unix socket to processes on this machine")
    http_port: int = option(0, "port of /metrics, /live and /ready; 0: none")

    # TLS, for clients that send START_TLS; others are served in plain text unless tls_required
    tls_certificate: str = option("", "PEM file of the bookie's certificate and its chain; empty: no TLS")
    tls_key: str = option("", "PEM file of the certificate's private key, without a password")
    tls_client_ca: str = option(
        "", "PEM file of the authorities whose certificates clients must show under TLS; empty: clients need none"
    )

    tls_required: bool = option(
        False, "refuse every request that does not come under TLS, also by the Unix socket; needs tls_certificate"
    )

    # journal
    journal_file_bytes: int = option(
        64 * MiB, "size of a journal file, reserved when it is made", sim=(16 * KiB, 256 * KiB)
    )
    journal_group_bytes_max: int = option(
        8 * MiB, "most bytes in one write and one fdatasync of the journal", sim=(4 * KiB, 64 * KiB)
    )
    journal_waiting_bytes_max: int = option(
        64 * MiB,
        "bytes that may wait for the journal; beyond it adds are refused (TOO_MANY_REQUESTS)",
        sim=(4 * KiB, 1 * MiB),
    )
    journal_files_max: int = option(6, "journal files behind the last checkpoint that make the next checkpoint due")

    # storage
    write_cache_bytes: int = option(
        64 * MiB, "size of each of the two write caches; a full one is flushed to entry logs", sim=(4 * KiB, 64 * KiB)
    )
    write_cache_entries: int = option(200_000, "entries in each of the two write caches", sim=(4, 1000))
    read_cache_bytes: int = option(32 * MiB, "memory for entries read from entry logs", sim=(0, 64 * KiB))
    read_ahead_bytes: int = option(
        1 * MiB, "bytes read from an entry log beyond an entry that is read in sequence; fewer while many readers do so"
    )
    read_ahead_entries: int = option(256, "entries read ahead at most")
    entry_log_bytes: int = option(512 * MiB, "size at which an entry log is closed and the next one begun")
    entry_logs_open_max: int = option(256, "entry logs kept open in each ledger directory, the last used ones")
    index: str = option(
        "sorted",
        "index of the entry logs: sorted (runs) or db (RocksDB, `dlogd[db]`); chosen when the bookie is formatted, and "
        "changed by `dlog bookie convert`",
    )
    index_db_cache_bytes: int = option(32 * MiB, "memory for blocks of an index db, for each ledger directory")
    index_db_write_buffer_bytes: int = option(
        16 * MiB, "size of each of the two write buffers of an index db, for each ledger directory"
    )
    checkpoint_s: float = option(30.0, "longest time between two checkpoints")
    salvage: bool = option(
        False, "start in spite of a damaged journal: read-only for good, and entries not found are I/O errors"
    )

    # limits
    reads_waiting_max: int = option(
        10_000, "reads of all connections that may wait for a disk; beyond it they are refused"
    )
    ledgers_max: int = option(1_000_000, "ledgers that may exist on the bookie; beyond it new ones are refused")
    connections_max: int = option(4096, "open connections; a further one is closed at once")
    receive_bytes_max: int = option(256 * MiB, "memory for frames that are not complete yet, of all connections")
    frame_s: float = option(30.0, "time in which a first request, or the rest of a begun one, must come")
    connection_out_bytes_max: int = option(
        4 * MiB, "unsent answers of a connection, beyond which its requests are not read"
    )
    connection_reads_max: int = option(256, "unanswered reads of a connection, beyond which its requests are not read")
    connection_long_polls_max: int = option(
        2_500, "long polls of a connection that may wait for a later LAC; beyond it they are refused"
    )
    long_polls_max: int = option(
        10_000, "reads of all connections that may wait for a later LAC (long polls); beyond it they are refused"
    )

    # disk space
    disk_check_s: float = option(5.0, "time between two looks at the free space")
    disk_free_min_bytes: int = option(1 * GiB, "free space in each directory, below which the bookie is read-only")
    disk_free_reserve_bytes: int = option(
        256 * MiB, "free space down to which recovery and high-priority adds are taken"
    )

    # garbage collection of ledgers that metadata no longer has, and of copies that were moved away
    gc_s: float = option(600.0, "time between garbage collections; every 30 s while the disk is nearly full; 0: never")
    gc_look_s: float = option(
        10.0, "time between two marks in metadata, after which ledgers new on this bookie may be collected"
    )
    gc_moved_s: float = option(
        86_400.0,
        "time between two looks for closed ledgers whose copies a repair, decommission or rebalance moved to other "
        "bookies; the second look that finds one frees its copies here. 0: they are kept until the ledger is deleted",
    )
    gc_minor_share: float = option(
        0.2, "live share of a full entry log, below which it is compacted after each collection"
    )
    gc_major_share: float = option(
        0.5, "live share below which it is compacted every gc_major_s, and while the disk is nearly full"
    )
    gc_major_s: float = option(3600.0, "time between major compactions")
    gc_bytes_s: int = option(8 * MiB, "bytes that compaction copies a second at most")
    gc_reserve_bytes: int = option(
        1 * MiB, "space held in each ledger directory, for a collection on a disk without a free byte"
    )

    def __post_init__(self) -> None:
        if self.gc_s < 0 or self.gc_look_s <= 0:
            raise ValueError(f"gc_s must not be negative and gc_look_s must be positive: gc_s={self.gc_s}")
        if self.gc_moved_s < 0:
            raise ValueError(f"gc_moved_s must not be negative: value={self.gc_moved_s}")
        if not 0 <= self.gc_minor_share <= self.gc_major_share < 1:
            raise ValueError("gc_minor_share must not exceed gc_major_share, which must be below 1")
        if self.gc_reserve_bytes < 0:
            raise ValueError(f"gc_reserve_bytes must not be negative: value={self.gc_reserve_bytes}")
        if self.index not in (kinds := tuple(IndexKind)):
            raise ValueError(f"index must be one of {', '.join(kinds)}: value={self.index}")
        if self.journal_file_bytes < 16 * KiB:
            raise ValueError(f"journal_file_bytes must be at least {16 * KiB}: value={self.journal_file_bytes}")
        if self.disk_free_reserve_bytes > self.disk_free_min_bytes:
            raise ValueError("disk_free_reserve_bytes must not exceed disk_free_min_bytes")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key must be given together")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if self.tls_required and not self.tls_certificate:
            raise ValueError("tls_required needs tls_certificate and tls_key")
        port_number(self, "port", "http_port")
        check_positive(
            self, "checkpoint_s", "disk_check_s", "frame_s", "connections_max", "ledgers_max", "reads_waiting_max"
        )
        check_positive(self, "long_polls_max", "connection_long_polls_max")
        check_positive(self, "journal_group_bytes_max", "journal_waiting_bytes_max", "journal_files_max")
        check_positive(
            self, "write_cache_bytes", "write_cache_entries", "entry_log_bytes", "receive_bytes_max", "gc_bytes_s"
        )
        check_positive(self, "entry_logs_open_max", "index_db_cache_bytes", "index_db_write_buffer_bytes")
        check_positive(
            self, "connection_out_bytes_max", "connection_reads_max", "read_ahead_bytes", "read_ahead_entries"
        )
        check_address(self.advertise)
        check_location_name("rack", self.rack)
        check_location_name("region", self.region)
