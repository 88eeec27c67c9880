// The Java DistributedLog library: the commands for streams. Positions are [segment, entry, slot].
import com.fasterxml.jackson.databind.JsonNode;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.DistributedLogConstants;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.EndOfStreamException;
import org.apache.distributedlog.io.CompressionCodec;

final class Logs {
    private static final class Writer {
        DistributedLogManager log;
        AsyncLogWriter writer;
    }

    private static final class Reader {
        DistributedLogManager log;
        AsyncLogReader reader;
        CompletableFuture<LogRecordWithDLSN> asked; // a request that outlived its command
    }

    private final Map<String, Namespace> namespaces = new ConcurrentHashMap<>();
    private final Map<Integer, Writer> writers = new ConcurrentHashMap<>();
    private final Map<Integer, Reader> readers = new ConcurrentHashMap<>();
    private final AtomicInteger next = new AtomicInteger();

    void register(Map<String, Peer.Command> commands) {
        commands.put("log.create", this::create);
        commands.put("log.describe", this::describe);
        commands.put("log.seek", this::seek);
        commands.put("writer.open", this::openWriter);
        commands.put("writer.write", this::write);
        commands.put("writer.write_set", this::writeSet);
        commands.put("writer.truncate", this::truncate);
        commands.put("writer.seal", this::seal);
        commands.put("writer.close", this::closeWriter);
        commands.put("writer.abort", this::abortWriter);
        commands.put("reader.open", this::openReader);
        commands.put("reader.next", this::readNext);
        commands.put("reader.close", this::closeReader);
    }

    // One namespace for each URI and settings: most settings are read when it is built.
    private synchronized Namespace namespace(JsonNode a) throws Exception {
        String key = a.get("uri").asText() + a.path("conf");
        Namespace found = namespaces.get(key);
        if (found == null) {
            DistributedLogConfiguration conf = new DistributedLogConfiguration();
            conf.setUseDaemonThread(true);
            conf.setNumWorkerThreads(2);
            conf.setBKClientNumberIOThreads(2);
            conf.setBKClientNumberWorkerThreads(2);
            conf.setBKClientReadTimeout(20); // a slow answer on a busy machine does not mean a dead bookie
            conf.setBKClientWriteTimeout(20);
            conf.setZKSessionTimeoutSeconds(10);
            conf.setBKClientZKSessionTimeout(10);
            conf.setLockTimeout(DistributedLogConstants.LOCK_IMMEDIATE);
            conf.setEnableLedgerAllocatorPool(false);
            conf.setCreateStreamIfNotExists(false);
            conf.setExplicitTruncationByApplication(true);
            a.path("conf").fields().forEachRemaining(field -> conf.setProperty(field.getKey(), field.getValue().asText()));
            found = NamespaceBuilder.newBuilder().conf(conf).uri(URI.create(a.get("uri").asText()))
                .clientId("java-" + next.incrementAndGet()).build();
            namespaces.put(key, found);
        }
        return found;
    }

    private DistributedLogManager log(JsonNode a) throws Exception {
        return namespace(a).openLog(a.get("log").asText());
    }

    private static DLSN dlsn(JsonNode node) {
        return new DLSN(node.get(0).asLong(), node.get(1).asLong(), node.get(2).asLong());
    }

    private static List<Long> told(DLSN dlsn) {
        return List.of(dlsn.getLogSegmentSequenceNo(), dlsn.getEntryId(), dlsn.getSlotId());
    }

    private Object create(JsonNode a) throws Exception {
        namespace(a).createLog(a.get("log").asText());
        return null;
    }

    private Object describe(JsonNode a) throws Exception {
        try (DistributedLogManager log = log(a)) {
            List<Object> segments = new ArrayList<>();
            for (LogSegmentMetadata segment : log.getLogSegments()) {
                segments.add(Peer.map("number", segment.getLogSegmentSequenceNumber(), "ledger", segment.getLogSegmentId(),
                    "completed", !segment.isInProgress(), "records", segment.getRecordCount(),
                    "first_txid", segment.getFirstTxId(), "last_txid", segment.getLastTxId(),
                    "last", told(segment.getLastDLSN()), "sequence", segment.getStartSequenceId(),
                    "truncation", segment.getTruncationStatus().name(), "min", told(segment.getMinActiveDLSN())));
            }
            Map<String, Object> found = Peer.map("segments", segments);
            if (a.path("records").asBoolean()) { // these calls read the segments; an empty log is an error for them
                found.put("sealed", log.isEndOfStreamMarked());
                found.put("count", log.getLogRecordCount());
                found.put("last", told(log.getLastDLSN()));
                found.put("last_txid", log.getLastTxId());
            }
            return found;
        }
    }

    private Object seek(JsonNode a) throws Exception {
        try (DistributedLogManager log = log(a)) {
            return told(log.getDLSNNotLessThanTxId(a.get("txid").asLong()).get());
        }
    }

    private Object openWriter(JsonNode a) throws Exception {
        Writer made = new Writer();
        made.log = log(a);
        try {
            made.writer = made.log.openAsyncLogWriter().get();
        } catch (Exception error) {
            made.log.close();
            throw error;
        }
        int name = next.incrementAndGet();
        writers.put(name, made);
        return name;
    }

    private Writer writer(JsonNode a) {
        return writers.get(a.get("handle").asInt());
    }

    // Writes all records at once; returns for each its position or the error. records: [[txid, payload], ...]
    private Object write(JsonNode a) throws Exception {
        AsyncLogWriter writer = writer(a).writer;
        List<CompletableFuture<DLSN>> waiting = new ArrayList<>();
        for (JsonNode record : a.get("records")) {
            waiting.add(writer.write(new LogRecord(record.get(0).asLong(), Peer.bytes(record.get(1)))));
        }
        return settled(waiting);
    }

    private static List<Object> settled(List<CompletableFuture<DLSN>> waiting) {
        List<Object> found = new ArrayList<>();
        for (CompletableFuture<DLSN> written : waiting) {
            try {
                found.add(told(written.get()));
            } catch (Exception error) {
                found.add(Peer.told(error));
            }
        }
        return found;
    }

    // Writes one record set; returns the positions of its records as the Java library counts them.
    private Object writeSet(JsonNode a) throws Exception {
        CompressionCodec.Type codec = CompressionCodec.Type.valueOf(a.path("codec").asText("NONE"));
        LogRecordSet.Writer set = LogRecordSet.newWriter(1 << 16, codec);
        List<CompletableFuture<DLSN>> places = new ArrayList<>();
        for (byte[] payload : Peer.list(a.get("payloads"))) {
            CompletableFuture<DLSN> place = new CompletableFuture<>();
            set.writeRecord(ByteBuffer.wrap(payload), place);
            places.add(place);
        }
        LogRecord record = new LogRecord(a.get("txid").asLong(), set.getBuffer());
        record.setRecordSet();
        DLSN first = writer(a).writer.write(record).get();
        set.completeTransmit(first.getLogSegmentSequenceNo(), first.getEntryId(), first.getSlotId());
        return settled(places);
    }

    private Object truncate(JsonNode a) throws Exception {
        return writer(a).writer.truncate(dlsn(a.get("dlsn"))).get();
    }

    private Object seal(JsonNode a) throws Exception {
        return writer(a).writer.markEndOfStream().get();
    }

    // Completes the segment and releases the lock.
    private Object closeWriter(JsonNode a) throws Exception {
        Writer gone = writers.remove(a.get("handle").asInt());
        gone.writer.asyncClose().get();
        gone.log.close();
        return null;
    }

    // Leaves the segment in progress, as a writer that dies; releases the lock.
    private Object abortWriter(JsonNode a) throws Exception {
        Writer gone = writers.remove(a.get("handle").asInt());
        gone.writer.asyncAbort().get();
        gone.log.close();
        return null;
    }

    private Object openReader(JsonNode a) throws Exception {
        Reader made = new Reader();
        made.log = log(a);
        try {
            made.reader = a.has("txid") ? made.log.openAsyncLogReader(a.get("txid").asLong()).get()
                : made.log.openAsyncLogReader(a.has("dlsn") ? dlsn(a.get("dlsn")) : DLSN.InitialDLSN).get();
        } catch (Exception error) {
            made.log.close();
            throw error;
        }
        int name = next.incrementAndGet();
        readers.put(name, made);
        return name;
    }

    // Reads up to `count` records; fewer when the stream ended (`ended`), or when none came for `ms`.
    private Object readNext(JsonNode a) throws Exception {
        Reader reader = readers.get(a.get("handle").asInt());
        List<Object> records = new ArrayList<>();
        boolean ended = false;
        while (records.size() < a.get("count").asInt()) {
            if (reader.asked == null) {
                reader.asked = reader.reader.readNext();
            }
            try {
                LogRecordWithDLSN record = reader.asked.get(a.get("ms").asLong(), TimeUnit.MILLISECONDS);
                reader.asked = null;
                records.add(List.of(told(record.getDlsn()), record.getTransactionId(), Peer.text(record.getPayload()),
                    record.getSequenceId(), record.getPositionWithinLogSegment()));
            } catch (TimeoutException late) {
                break;
            } catch (Exception error) {
                reader.asked = null;
                if (error.getCause() instanceof EndOfStreamException) {
                    ended = true;
                    break;
                }
                throw error;
            }
        }
        return Peer.map("records", records, "ended", ended);
    }

    private Object closeReader(JsonNode a) throws Exception {
        Reader gone = readers.remove(a.get("handle").asInt());
        gone.reader.asyncClose().get();
        gone.log.close();
        return null;
    }
}
