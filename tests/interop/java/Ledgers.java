// The Java BookKeeper client, on its v2 wire unless v3 is requested: the commands for ledgers.
import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

final class Ledgers {
    private final Map<String, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Integer, LedgerHandle> handles = new ConcurrentHashMap<>();
    private final AtomicInteger next = new AtomicInteger();

    void register(Map<String, Peer.Command> commands) {
        commands.put("ledger.create", this::create);
        commands.put("ledger.open", this::open);
        commands.put("ledger.add", this::add);
        commands.put("ledger.read", this::read);
        commands.put("ledger.lac", this::lac);
        commands.put("ledger.poll", this::poll);
        commands.put("ledger.metadata", this::metadata);
        commands.put("ledger.close", this::close);
        commands.put("ledger.delete", this::delete);
        commands.put("ledger.force", this::force);
        commands.put("ledger.list", this::list);
        commands.put("bookies.space", this::space);
    }

    private synchronized BookKeeper client(JsonNode a) throws Exception {
        String uri = a.get("uri").asText();
        boolean v3 = a.path("v3").asBoolean();
        int explicitLacMs = a.path("explicit_lac_ms").asInt();
        JsonNode tls = a.path("tls"); // files: certificate, key, authorities
        String name = uri + v3 + explicitLacMs + tls;
        BookKeeper found = clients.get(name);
        if (found == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(uri);
            conf.setUseV2WireProtocol(!v3);
            conf.setExplictLacInterval(explicitLacMs);
            conf.setZkTimeout(10000);
            conf.setAddEntryTimeout(20); // a slow answer on a busy machine does not mean a dead bookie
            conf.setReadEntryTimeout(20);
            if (tls.isArray()) {
                conf.setTLSProviderFactoryClass("org.apache.bookkeeper.tls.TLSContextFactory");
                conf.setTLSProvider("JDK");
                conf.setTLSClientAuthentication(true);
                conf.setTLSCertificatePath(tls.get(0).asText());
                conf.setTLSKeyStoreType("PEM");
                conf.setTLSKeyStore(tls.get(1).asText());
                conf.setTLSTrustStoreType("PEM");
                conf.setTLSTrustStore(tls.get(2).asText());
            }
            conf.setNumIOThreads(2);
            conf.setNumWorkerThreads(2);
            found = new BookKeeper(conf);
            clients.put(name, found);
        }
        return found;
    }

    private LedgerHandle handle(JsonNode a) {
        return handles.get(a.get("handle").asInt());
    }

    private int keep(LedgerHandle handle) {
        int name = next.incrementAndGet();
        handles.put(name, handle);
        return name;
    }

    private static BookKeeper.DigestType digest(JsonNode a) {
        return BookKeeper.DigestType.valueOf(a.path("digest").asText("CRC32C"));
    }

    private static byte[] password(JsonNode a) {
        return a.has("password") ? Peer.bytes(a.get("password")) : new byte[0];
    }

    private Object create(JsonNode a) throws Exception {
        Map<String, byte[]> custom = new LinkedHashMap<>();
        a.path("custom").fields().forEachRemaining(field -> custom.put(field.getKey(), Peer.bytes(field.getValue())));
        if (a.path("deferred").asBoolean()) {
            LedgerHandle made = (LedgerHandle) client(a).newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3)
                .withAckQuorumSize(2).withDigestType(DigestType.CRC32C).withPassword(password(a))
                .withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get();
            return Peer.map("handle", keep(made), "ledger", made.getId());
        }
        LedgerHandle made = client(a).createLedger(
            a.path("ensemble").asInt(3), a.path("write").asInt(3), a.path("ack").asInt(2), digest(a), password(a), custom);
        return Peer.map("handle", keep(made), "ledger", made.getId());
    }

    // recover: fences and closes; otherwise a reader that does not disturb the writer.
    private Object open(JsonNode a) throws Exception {
        long id = a.get("ledger").asLong();
        LedgerHandle found = a.path("recover").asBoolean()
            ? client(a).openLedger(id, digest(a), password(a))
            : client(a).openLedgerNoRecovery(id, digest(a), password(a));
        return Peer.map("handle", keep(found), "lac", found.getLastAddConfirmed(), "closed", found.isClosed(),
            "length", found.getLength());
    }

    // Adds all entries at once; returns for each its id, or the client's error code.
    private Object add(JsonNode a) throws Exception {
        LedgerHandle ledger = handle(a);
        List<CompletableFuture<Long>> waiting = new ArrayList<>();
        for (byte[] payload : Peer.list(a.get("payloads"))) {
            CompletableFuture<Long> added = new CompletableFuture<>();
            ledger.asyncAddEntry(payload, (rc, handle, entry, context) -> {
                if (rc == BKException.Code.OK) {
                    added.complete(entry);
                } else {
                    added.completeExceptionally(BKException.create(rc));
                }
            }, null);
            waiting.add(added);
        }
        List<Object> told = new ArrayList<>();
        for (CompletableFuture<Long> added : waiting) {
            try {
                told.add(added.get());
            } catch (Exception error) {
                told.add(Peer.told(error));
            }
        }
        return told;
    }

    // how: plain, unconfirmed (above the LAC too), batch (one request for several entries, v2 only).
    private Object read(JsonNode a) throws Exception {
        LedgerHandle ledger = handle(a);
        long first = a.get("first").asLong();
        long last = a.get("last").asLong();
        List<String> found = new ArrayList<>();
        while (first <= last) {
            Enumeration<LedgerEntry> entries = switch (a.path("how").asText("plain")) {
                case "batch" -> ledger.batchReadEntries(first, (int) (last - first + 1), a.path("bytes").asLong(1 << 20));
                case "unconfirmed" -> ledger.readUnconfirmedEntries(first, Math.min(last, first + 99));
                default -> ledger.readEntries(first, Math.min(last, first + 99));
            };
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                if (entry.getEntryId() != first) {
                    throw new IllegalStateException("entry " + entry.getEntryId() + " came for " + first);
                }
                found.add(Peer.text(entry.getEntry()));
                first += 1;
            }
        }
        return found;
    }

    private Object lac(JsonNode a) throws Exception {
        LedgerHandle ledger = handle(a);
        return switch (a.path("how").asText()) {
            case "try" -> ledger.tryReadLastConfirmed();
            case "explicit" -> ledger.readExplicitLastConfirmed();
            default -> ledger.readLastConfirmed();
        };
    }

    private Object poll(JsonNode a) throws Exception {
        long wanted = a.get("entry").asLong();
        try (LastConfirmedAndEntry found =
                handle(a).readLastAddConfirmedAndEntryAsync(wanted, a.get("ms").asLong(), false).get()) {
            return Peer.map("lac", found.getLastAddConfirmed(),
                "payload", found.hasEntry() ? Peer.text(found.getEntry().getEntryBytes()) : null);
        }
    }

    private Object metadata(JsonNode a) throws Exception {
        LedgerMetadata found = client(a).getLedgerMetadata(a.get("ledger").asLong()).get();
        List<Object> fragments = new ArrayList<>();
        found.getAllEnsembles().forEach((first, members) -> {
            List<String> names = new ArrayList<>();
            members.forEach(member -> names.add(member.toString()));
            fragments.add(List.of(first, names));
        });
        Map<String, String> custom = new LinkedHashMap<>();
        found.getCustomMetadata().forEach((name, value) -> custom.put(name, Peer.text(value)));
        return Peer.map("state", found.getState().name(), "last", found.getLastEntryId(), "length", found.getLength(),
            "digest", found.getDigestType().name(), "fragments", fragments, "custom", custom,
            "quorum", List.of(found.getEnsembleSize(), found.getWriteQuorumSize(), found.getAckQuorumSize()));
    }

    private Object close(JsonNode a) throws Exception {
        LedgerHandle ledger = handles.remove(a.get("handle").asInt());
        ledger.close();
        return ledger.getLastAddConfirmed();
    }

    private Object delete(JsonNode a) throws Exception {
        client(a).deleteLedger(a.get("ledger").asLong());
        return null;
    }

    private Object force(JsonNode a) throws Exception {
        LedgerHandle ledger = handle(a);
        ledger.force().get();
        return ledger.getLastAddConfirmed();
    }

    // The ids below `below` that a bookie says it has, and how many it has in all.
    private Object list(JsonNode a) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client(a), new ClientConfiguration())) {
            AvailabilityOfEntriesOfLedger found = admin.asyncGetListOfEntriesOfLedger(
                BookieId.parse(a.get("bookie").asText()), a.get("ledger").asLong()).get();
            List<Long> ids = new ArrayList<>();
            for (long entry = 0; entry < a.get("below").asLong(); entry++) {
                if (found.isEntryAvailable(entry)) {
                    ids.add(entry);
                }
            }
            return Peer.map("ids", ids, "count", found.getTotalNumOfAvailableEntries());
        }
    }

    private Object space(JsonNode a) throws Exception {
        Map<String, Object> told = new LinkedHashMap<>();
        client(a).getBookieInfo().forEach((bookie, info) ->
            told.put(bookie.toString(), List.of(info.getTotalDiskSpace(), info.getFreeDiskSpace())));
        return told;
    }
}
