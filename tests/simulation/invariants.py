"""Every invariant of the machines: its text, where it is checked, and which planted defects prove the check.

Ids are those of the reliability goals: L of a ledger, P of where its copies lie, S of a stream, T of its ownership, D
of streams that are deleted and created again, R of a read proxy's cache, F of a segment in files, K of a region, C of a
chain of chunks in an object storage, O of streams in objects and their metadata, M of the log of that metadata, N of
the nodes that write those streams. Reasons for an exception or a restriction are given here in words.

Invariants:
- Each id below is the first one that some planted defect must be caught by (`test_invariants.py` compares).
"""

from __future__ import annotations

from typing import NamedTuple


class Invariant(NamedTuple):
    """says: what always holds. room: the simulation in which it is checked. check: the functions that check it."""

    says: str
    room: str
    check: str
    limits: str = ""


LEDGER, REPAIR, AUDITOR = "ledger", "repair", "auditor"
STREAM, CACHE, FILES, REGION = "stream", "cache", "files", "region"
OBJECTS, CONTROLLER, COMPACTION, NODES = "objects", "controller", "compaction", "nodes"

INVARIANTS = {
    "L1": Invariant(
        "an acknowledged entry is below the ledger's end and can be read", LEDGER, "LedgerChecks._closed, finish"
    ),
    "L2": Invariant("a closed ledger never changes", LEDGER, "LedgerChecks.metadata_changed"),
    "L3": Invariant(
        "an entry has the same bytes for all readers and recoveries",
        LEDGER,
        "LedgerChecks.read_entry, returned, finish",
    ),
    "L4": Invariant(
        "when a ledger is closed, each entry is on Qa members of its ensemble", LEDGER, "LedgerChecks._closed"
    ),
    "L5": Invariant(
        "the LAC that a reader gets never goes back and never passes what is decided; a search for the tail "
        "finds every acknowledged entry",
        LEDGER,
        "LedgerChecks.visible, found",
    ),
    "L6": Invariant("entries are acknowledged in order, without a gap", LEDGER, "LedgerChecks.acked"),
    "L7": Invariant("a fenced writer gets no acknowledgement", LEDGER, "LedgerChecks.acked"),
    "L8": Invariant(
        "a recovery searches for the end only once the fence covers every write quorum, and ends only once "
        "enough bookies deny the next entry",
        LEDGER,
        "LedgerChecks._see_coverage, _see_end",
    ),
    "L9": Invariant(
        "fragments begin at rising entries; a search for the end begins in the last one",
        LEDGER,
        "LedgerChecks.metadata_changed",
    ),
    "L10": Invariant("nothing is acknowledged on an ensemble unknown to metadata", LEDGER, "LedgerChecks.acked"),
    "L11": Invariant("an entry is never sent with other bytes", LEDGER, "LedgerChecks._see_add"),
    "L12": Invariant("all recoveries return the same end", LEDGER, "LedgerChecks.ended"),
    "P1": Invariant(
        "an ensemble keeps the placement policy or an event says so; a strict one is never kept less",
        LEDGER,
        "LedgerChecks._see_ensembles",
    ),
    "P2": Invariant(
        "an entry is confirmed, or kept by a recovery, only once bookies of as many regions hold it as the ledger asks",
        LEDGER,
        "LedgerChecks._check_regions",
    ),
    "L13": Invariant(
        "a repair neither lowers the number of live copies nor makes anything above the end readable",
        REPAIR,
        "RepairChecks._check_entry, check_bytes, _see_copy",
        "A copy is live if metadata names its bookie and its disk is not lost. L14, of deletion, is a join of metadata "
        "that no simulation makes.",
    ),
    "L15": Invariant(
        "after each change by a repair the copies are where metadata says, and in the end on the whole write set; no "
        "split makes more fragments than the bound",
        REPAIR,
        "RepairChecks._check_entry, metadata_changed, check_whole",
    ),
    "L16": Invariant(
        "a repair never changes what a reader sees: payload, length, that the ledger is there or deleted",
        REPAIR,
        "RepairChecks.check_bytes, RepairWorld.read_all, delete_it",
    ),
    "L17": Invariant(
        "once faults end, repairs end, metadata names no bookie that is gone, and missing copies are written again",
        REPAIR,
        "RepairWorld.repair_all, verify_all, demand_no_repair",
    ),
    "L18": Invariant(
        "a repair reports an entry as unreadable, or keeps a bookie that is gone for it, only if every other bookie "
        "that should hold it and is not gone denied it or has a damaged copy",
        REPAIR,
        "RepairChecks._check_split, _check_unreadable, _check_given_up",
        "Of entries that are given up together the first and the last one are checked: others may lie between them.",
    ),
    "L19": Invariant(
        "once faults end, the ledgers of a lost bookie are marked and made whole, whichever process died, and a "
        "decommission ends",
        AUDITOR,
        "AuditorChecks.unfinished, check_contents, AuditorWorld._settle",
    ),
    "L20": Invariant(
        "a mark is deleted only if each of its bookies, since it was last marked, was named no more or was registered "
        "with all its copies, or if the ledger is deleted",
        AUDITOR,
        "AuditorChecks._mark_written, _end_mark",
        "Of an open ledger the copies up to a LAC count that all members of its last ensemble know.",
    ),
    "L21": Invariant(
        "a mark names a bookie only if it was away for the delay, is decommissioned, or lacked a copy",
        AUDITOR,
        "AuditorChecks._check_reason",
        "That a bookie returned for less than the time between two listings need not be noticed.",
    ),
    "L22": Invariant(
        "no copies of a bookie are moved during its planned restart", AUDITOR, "AuditorChecks._check_pauses"
    ),
    "L23": Invariant(
        "a decommission forgets a bookie only if it was not registered since before the scan, and no ledger named it",
        AUDITOR,
        "AuditorChecks._forgotten",
        "What metadata names since the scan began does not count: the bookie was not registered then, so it was chosen "
        "from an old list.",
    ),
    "L24": Invariant("a bookie that was forgotten never registers again", AUDITOR, "AuditorChecks._registered"),
    "L25": Invariant("no lock of a process that died blocks a repair", AUDITOR, "AuditorChecks.unfinished"),
    "L26": Invariant("a deleted ledger keeps no mark", AUDITOR, "AuditorChecks.unfinished"),
    "L27": Invariant(
        "a ledger or mark that cannot be decoded, or a ledger that nobody can serve, keeps no other from being "
        "repaired",
        AUDITOR,
        "AuditorChecks.unfinished",
    ),
    "L28": Invariant(
        "a comparison finds exactly the bookies that answer and lack copies, and marks those",
        AUDITOR,
        "AuditorChecks._compared, _begin_mark, _check_reason",
        "Copies that differ, and which entries are missing, are in tests/simulation/test_comparing.py.",
    ),
    "L29": Invariant(
        "a writer that delays ensemble changes leaves an ensemble only once the members that answer may not confirm "
        "the next entry, or once one has failed for 2/3 of `delay_max_s`; it replaces that one soon after that time",
        LEDGER,
        "LedgerChecks._see_writers_change, _see_left_out, answered",
    ),
    "L30": Invariant(
        "with an ack-quorum timeout the oldest entry is answered in one and a half of it, and not given up before it",
        LEDGER,
        "LedgerChecks.answered",
    ),
    "L31": Invariant(
        "a bookie frees copies only of a closed ledger that metadata does not name it for and whose copies are whole "
        "elsewhere; metadata never names a bookie for a copy that it freed; moved copies are freed in the end",
        REPAIR,
        "RepairChecks.freed, _check_entry, RepairWorld.free_all",
    ),
    "L33": Invariant(
        "an entry of a ledger with deferred sync is reported as durable only after a force that covers it was "
        "acknowledged by Qa bookies of its ensemble: these hold it on stable storage",
        LEDGER,
        "LedgerChecks.forced, _see_carried",
    ),
    "L34": Invariant("a bookie that freed its copies takes no entry of an old writer", REPAIR, "RepairChecks.freed"),
    "S1": Invariant("a DLSN names one record, numbers are dense", STREAM, "StreamChecks._started, _master"),
    "S2": Invariant(
        "an acknowledged batch is in the log once, at the DLSN that was acknowledged",
        STREAM,
        "StreamChecks._check_writes",
    ),
    "S3": Invariant(
        "a reader gets only records that a producer wrote", STREAM, "StreamChecks._check_writes, _check_readers"
    ),
    "S4": Invariant("a reader gets the records in order, without a gap", STREAM, "StreamChecks._see, _check_readers"),
    "S5": Invariant(
        "a batch that is sent after an acknowledgement is written after the acknowledged one",
        STREAM,
        "StreamChecks._check_order",
    ),
    "S6": Invariant("a segment takes entries only after those before it are closed", STREAM, "StreamChecks.appended"),
    "S7": Invariant("txids never decrease, also across owners", STREAM, "StreamChecks._master, changed"),
    "S8": Invariant("no reader sees control records or beyond the LAC", STREAM, "StreamChecks.delivered"),
    "S9": Invariant(
        "the truncation point only moves forward",
        STREAM,
        "StreamChecks.changed, Reader.told, _truncated, Removals.explains",
        "A completed segment that its store removed by itself counts as truncated for its readers, and no other does.",
    ),
    "S10": Invariant("metadata of a completed segment equals its contents", STREAM, "StreamChecks._check_completed"),
    "S11": Invariant("a seek finds the first record at or after its txid or time", STREAM, "StreamChecks._check_seek"),
    "S12": Invariant(
        "a reader that resumes at a position neither skips nor repeats a record",
        STREAM,
        "StreamChecks._see, _check_readers",
        "The service keeps no cursors or subscriptions: where a reader stands is known to the reader alone. What there "
        "is to check is that a reader opened again at its position goes on exactly there, whatever died meanwhile.",
    ),
    "S13": Invariant(
        "a batch of a sink is in the log once, whole and in order", STREAM, "SinkChecks.check, swept, listed"
    ),
    "E1": Invariant(
        "no segment is expired before its retention has passed since its last record was stored",
        STREAM,
        "RetentionChecks.changed",
        "Of the proxies' clocks and metadata's one kind is right; the others may show any time.",
    ),
    "S14": Invariant(
        "what an owner reports as not written was not in the log when it was asked",
        STREAM,
        "StreamChecks.said",
        "The log holds what some owner said to be written by then; what another one confirms while the question is "
        "under way is seen when the producer's next generation begins (S2).",
    ),
    "S15": Invariant(
        "a batch that was given up is in the log before whatever its producer got acknowledged later, or is "
        "never written",
        STREAM,
        "StreamChecks._check_given_up",
    ),
    "S16": Invariant(
        "a stage that is imported without a number is in the log once, however often and late the request arrives",
        STREAM,
        "ImportProgram.check",
    ),
    "S17": Invariant(
        "a producer that keeps to its window learns where each repeated batch was written", STREAM, "Client._answered"
    ),
    "S18": Invariant(
        "a segment begins in the store, and with its settings, that the stream had when it was listed",
        STREAM,
        "StreamWorld._check_settings",
    ),
    "E2": Invariant(
        "metadata names no copy of a segment that was deleted",
        STREAM,
        "OffloadChecks.check",
        "What lies in cold storage is written at once and lost to no fault: which copies are deleted is looked at.",
    ),
    "T1": Invariant(
        "the entries of each owner come after those of the owner before", STREAM, "StreamChecks._check_order"
    ),
    "T2": Invariant("an owner that lost its claim acknowledges nothing", STREAM, "StreamChecks.answered"),
    "T3": Invariant("each claim raises the epoch by one, by compare-and-set", STREAM, "StreamChecks.changed, owned"),
    "T4": Invariant(
        "when a segment enters the list, all but the one before it have ended", STREAM, "StreamChecks._started"
    ),
    "T5": Invariant("once faults end, every stream takes writes", STREAM, "StreamWorld.run"),
    "T6": Invariant(
        "a follower of an owner learns of every acknowledged entry; a message about a location is never "
        "applied to another one",
        STREAM,
        "Follower.on_lac, Proxy._check_told, StreamWorld.run",
    ),
    "T7": Invariant(
        "a program that was shut out of a sink writes nothing more to it", STREAM, "SinkChecks.check, listed"
    ),
    "D1": Invariant(
        "a request for one incarnation of a stream never changes another",
        STREAM,
        "LivesWorld._changed, _check_last",
        "A batch names no incarnation: what is written late may lie in the next stream of the name.",
    ),
    "D2": Invariant(
        "a request sent after a deletion was answered is not acknowledged in that incarnation",
        STREAM,
        "LivesWorld.written",
    ),
    "R1": Invariant("a cache serves only what the log holds", CACHE, "CacheChecks.sent, lac_said"),
    "R2": Invariant(
        "a reader is told of the end of a segment, of the tail or of the stream only where it is; once faults end it "
        "gets everything that is confirmed",
        CACHE,
        "CacheChecks.ended, end_of_stream, CacheWorld.run",
        "A stream that was deleted and made again under "
        "its name while a reader could not look is another stream, and what lies between is not compared.",
    ),
    "R3": Invariant(
        "the absence of a stream or of entries is reported to the request that met it, and not remembered",
        CACHE,
        "CacheWorld.run, ReaderHost._told",
    ),
    "R4": Invariant(
        "truncated entries leave the cache within two seconds",
        CACHE,
        "CacheChecks.forgotten, sent",
        "As long as metadata can be reached; a proxy that is cut off from it learns of the truncation when it is back.",
    ),
    "R5": Invariant("the cache keeps within its bytes", CACHE, "CacheChecks.bounded"),
    "F1": Invariant("all processes return the same end of a segment", FILES, "FileWorld._conclude"),
    "F2": Invariant(
        "an acknowledged entry is below the end, can be read, and is as written",
        FILES,
        "FileWorld._conclude, _end_and_read",
    ),
    "F3": Invariant("an append that began after an end was returned is not acknowledged", FILES, "FileWorld._conclude"),
    "F4": Invariant(
        "a reader gets the entries in order up to a LAC that never goes back, and none that the end leaves out later",
        FILES,
        "FileWorld.follow, _conclude",
    ),
    "F5": Invariant(
        "a tail covers what was acknowledged before, and no later end leaves it out", FILES, "FileWorld._end_and_read"
    ),
    "F6": Invariant(
        "a deleted segment leaves no file",
        FILES,
        "FileWorld._conclude",
        "A process that dies while it ends or deletes a segment may leave a small file, never one with entries.",
    ),
    "F7": Invariant(
        "a segment can be ended on a full disk after its writer was refused or is done", FILES, "FileWorld.recover"
    ),
    "K1": Invariant(
        "an owner's state is that of the whole data topic, whatever snapshot it began with",
        REGION,
        "RegionChecks.state_is, dropped, RegionWorld.run",
        "Marks are not in the data topic. Those of a dropped table outlive every crash; others are kept from the next "
        "check-point on.",
    ),
    "K2": Invariant(
        "records are deleted only below the marks of all tables that are not dropped, with a snapshot and a "
        "check-point that have them, and the record that began a table only once something of it is marked",
        REGION,
        "RegionChecks.deleted",
        "A deposed owner that is not aware of it may delete its successor's snapshots; the check-point is left.",
    ),
    "K3": Invariant("the sequences of a table are dense and are given out once", REGION, "Truth.appended"),
    "K4": Invariant(
        "a write counts once, whole, or not at all, as it was answered, and a reader sees what counts, in order",
        REGION,
        "RegionChecks.finish, read",
        "Where another program or a later owner deleted more than a reader knows of, it begins at the first mapped "
        "record behind that, in version 0 at the first one of each table, and is told that what lies before is lost.",
    ),
    "K5": Invariant(
        "an acknowledged write counts; none is acknowledged once another owner's fence is in force",
        REGION,
        "RegionChecks.acknowledged, begun",
    ),
    "K7": Invariant(
        "all requests for a table's end get the same one, nothing after it counts, and a table that was not found is "
        "never begun",
        REGION,
        "RegionChecks.ended, not_found, refused_as_ended, Truth.appended",
        "K6 of the specification is a test of Kafka's settings.",
    ),
    "K8": Invariant(
        "a follower's state is that of the whole data topic, and its newest entries count",
        REGION,
        "RegionChecks.state_is, caught_up, recent, Followers.check",
    ),
    "K9": Invariant(
        "a table whose removal is acknowledged is dropped, and a dropped table never comes back",
        REGION,
        "RegionChecks.removed, snapshot_appended, state_is, Truth.appended",
    ),
    "K10": Invariant(
        "a region is retired only if each of its tables is dropped, and nothing counts afterwards",
        REGION,
        "RegionChecks.retired, Truth.appended",
    ),
    "K11": Invariant(
        "once faults end, a follower catches up, finds the end of each table that is not dropped, drops it, and "
        "retires the region",
        REGION,
        "Followers.finish",
    ),
    "K12": Invariant(
        "the entries of a table whose writer submits each with its sequence are a prefix of what was submitted, also "
        "if the topic refuses some",
        REGION,
        "RegionChecks.finish",
    ),
    "C1": Invariant("a confirmed entry counts, with its bytes", OBJECTS, "WriterProcess._perform"),
    "C2": Invariant("all recoveries and the seal have one end", OBJECTS, "WriterProcess._perform, TailProcess._check"),
    "C3": Invariant(
        "a tail covers every entry confirmed before the search, and its entries count", OBJECTS, "TailProcess._check"
    ),
    "C4": Invariant(
        "a reader accepts only chunks that count, and the chain is never reported as damaged",
        OBJECTS,
        "FollowerProcess._perform, _tell, TailProcess._tell, ObjectsWorld.run",
    ),
    "C5": Invariant("a tail is found in O(log n) listings", OBJECTS, "TailProcess._list"),
    "C6": Invariant("the chunks that count tile the entries", OBJECTS, "ObjectsWorld._put"),
    "O3": Invariant(
        "an object goes from prepared to committed, marked and destroyed; what is committed is found, and only what is "
        "marked in the log is deleted",
        CONTROLLER,
        "MetadataChecks._check_states, _check_epochs, deleted",
    ),
    "O4": Invariant(
        "ranges of a stream abut and committed slices tile them, at every version; what is committed stays; what is "
        "acknowledged is read, once, in order, at its offset, from objects and the write-ahead logs",
        CONTROLLER,
        "MetadataChecks._check_stream, NodesWorld.acknowledged, _read, _read_all",
    ),
    "O5": Invariant(
        "only the current epoch of a node, and the node of a range, commits; one caller gets an epoch of a node; "
        "nothing is acknowledged at or above the end of its range, once that is recorded",
        CONTROLLER,
        "MetadataChecks._check_epochs, answered, NodesWorld.acknowledged, ControllerHost.ask",
    ),
    "O10": Invariant(
        "images of one version are equal, whether made of all records or of a snapshot and the rest; every record fits",
        CONTROLLER,
        "MetadataChecks.landed, compare, ControllerProcess._handled, ReaderProcess._tell, ControllerWorld.run",
    ),
    "O11": Invariant("a refused operation changes nothing", CONTROLLER, "ControllerProcess.request"),
    "O12": Invariant(
        "an operation that is answered as done is in the log, and was judged by everything that was in the "
        "log when it came",
        CONTROLLER,
        "MetadataChecks.answered",
    ),
    "O13": Invariant(
        "a controller of a stream that lost entries refuses everything if the storage has an object or a snapshot that "
        "they recorded, where it looks; no other one does",
        CONTROLLER,
        "ControllerWorld._go_back, ControllerProcess._perform",
    ),
    "O14": Invariant(
        "only object streams whose deletion was requested, or that were never opened, are deleted",
        CONTROLLER,
        "MetadataChecks._check_deleted",
    ),
    "O1": Invariant(
        "each object that metadata refers to is in the storage, with its entries",
        COMPACTION,
        "CompactionChecks._check_object, object_deleted, missing, finish, NodesWorld._check_commit, _read",
    ),
    "O2": Invariant(
        "only marked objects are deleted, what nothing refers to is gone after its expiry or retention, and objects of "
        "a node that has left are compacted",
        COMPACTION,
        "CompactionChecks.object_deleted, finish, _is_young, NodesWorld._check_at_rest",
        "An object that lands after its key was deleted stays: keys are never used again, so it harms nobody, and fsck "
        "finds it.",
    ),
    "O7": Invariant(
        "bytes that the storage gave wrong are neither read nor copied",
        COMPACTION,
        "CompactionChecks._check_object, read",
    ),
    "O8": Invariant(
        "the output of a compaction is its input, entry for entry, with txids and times, at any offset",
        COMPACTION,
        "CompactionChecks.after, _check_object",
    ),
    "O9": Invariant(
        "a reader gets every acknowledged and uploaded entry, or a partial result that it may ask for again",
        COMPACTION,
        "CompactionChecks.searched, read, finish, _read_all",
        "What is trimmed, dropped or deleted is an error that says so.",
    ),
    "O6": Invariant(
        "a segment of a write-ahead log is deleted only below the flush point of a confirmed commit, with everything "
        "in it committed",
        NODES,
        "NodesWorld._check_wal_deletion, _frames",
    ),
    "N1": Invariant("an entry that was read once can be read again", NODES, "NodesWorld._read_all, Client._read_cache"),
    "N2": Invariant(
        "without faults a node serves, closes its streams and uploads all, and its write-ahead log is deleted; what a "
        "node that is gone for good left is uploaded by others, and no segment of its log remains",
        NODES,
        "NodesWorld._check_at_rest, NodeHost.finish",
    ),
    "N3": Invariant(
        "a node is taken over without need of its streams only if it made no progress between two looks, was not seen "
        "registered or was fenced before, and is not failed over by the same process",
        NODES,
        "Survivor._check",
    ),
    "C7": Invariant(
        "where a chunk is missing that is known to be confirmed, no search returns an end below what was confirmed",
        OBJECTS,
        "TailProcess._check",
    ),
    "C8": Invariant(
        "a writer that wakes up gets nothing confirmed in a deleted segment but what counted before, whatever is "
        "damaged",
        OBJECTS,
        "WriterProcess._perform",
    ),
    "C9": Invariant(
        "a reader finds a segment that is being deleted whole or not at all", OBJECTS, "TailProcess._check, _tell"
    ),
    "C10": Invariant(
        "a deletion that is repeated to its end leaves nothing but FENCEs and what may be one",
        OBJECTS,
        "ObjectsWorld._finish_deletion",
    ),
    "C11": Invariant(
        "while a segment exists, all entries that count are in its chunks or in the data that its index names",
        OBJECTS,
        "ObjectsWorld.check_kept",
    ),
    "C12": Invariant(
        "a merged segment has the same end and entries as before, for readers, recoveries and merges",
        OBJECTS,
        "TailProcess._check, FollowerProcess._tell, MergeProcess._tell",
    ),
    "C13": Invariant(
        "a merge that is repeated to its end leaves BEGIN, the end, the index and its data",
        OBJECTS,
        "ObjectsWorld._finish_merge",
    ),
}
