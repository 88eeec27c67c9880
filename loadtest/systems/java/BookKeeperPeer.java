import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * Apache BookKeeper's Java client in its fastest setup: v2 wire, no throttle, CRC32C. A log is a list of ledgers, with
 * their ids in a znode, as BookKeeper's applications do; an entry holds one record or one batch.
 *
 * If writing to a ledger fails, the writer recovers the ledger to learn which entries it has, and writes the others, in
 * order, to the next ledger.
 */
final class BookKeeperPeer implements Peer {
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final byte[] PASSWORD = new byte[0];
    private static final int READ_BYTES = 512 << 10; // asked for at once
    private static final int RANGE_ENTRIES = 2000;
    private static final int RANGES = 4;
    private static final int SESSION_MS = 10_000;
    private static final long RETRY_MS = 100;
    private static final long CLOSING_MS = 2_000; // how long a reader that does not follow waits for a ledger to be closed
    private static final long TROUBLE_MS = 10;
    private static final long UNKNOWN = -2;
    private static final long POLL_MS = 100;

    private final Job job;
    private final String zookeeper;
    private final BookKeeper client;
    private ZooKeeper lists;

    BookKeeperPeer(Job job) throws Exception {
        this.job = job;
        zookeeper = job.address.get("zookeeper").asText();
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(job.address.get("metadata").asText());
        conf.setZkTimeout(SESSION_MS);
        conf.setThrottleValue(0);
        conf.setUseV2WireProtocol(job.produces || !job.follow); // waiting for the next entry needs v3
        conf.setDelayEnsembleChange(job.address.get("delay_ensemble_change").asBoolean()); // two of three are enough
        client = new BookKeeper(conf);
    }

    @Override
    public boolean carriesBatches() {
        return true;
    }

    @Override
    public Appender appender(String log, Answers answers) throws Exception {
        return new Ledgers(log, answers);
    }

    @Override
    public Reader reader(String log, boolean tail) throws Exception {
        return new LedgerReader(log, tail);
    }

    @Override
    public void close() throws Exception {
        client.close();
    }

    // ---- the list of a log's ledgers ---------------------------------------------------------------------------------

    private interface Asking<T> {
        T ask(ZooKeeper client) throws Exception;
    }

    private synchronized <T> T ask(Asking<T> asking) throws Exception {
        if (lists == null || !lists.getState().isConnected()) {
            if (lists != null) {
                lists.close();
            }
            CountDownLatch connected = new CountDownLatch(1);
            lists = new ZooKeeper(zookeeper, SESSION_MS, event -> {
                if (event.getState() == KeeperState.SyncConnected) {
                    connected.countDown();
                }
            });
            if (!connected.await(SESSION_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("no ZooKeeper at " + zookeeper);
            }
        }
        return asking.ask(lists);
    }

    private String node(String log) {
        return job.address.get("logs").asText() + "/" + log;
    }

    private List<Long> ledgersOf(String log) throws Exception {
        return parsed(ask(client -> client.getData(node(log), false, null)));
    }

    private void note(String log, long ledger) throws Exception {
        ask(client -> {
            while (true) {
                Stat stat = new Stat();
                List<Long> ledgers = parsed(client.getData(node(log), false, stat));
                if (ledgers.contains(ledger)) {
                    return null;
                }
                ledgers.add(ledger);
                String text = String.join(",", ledgers.stream().map(String::valueOf).toList());
                try {
                    client.setData(node(log), text.getBytes(StandardCharsets.US_ASCII), stat.getVersion());
                    return null;
                } catch (KeeperException.BadVersionException again) {
                    continue;
                }
            }
        });
    }

    private static List<Long> parsed(byte[] data) {
        List<Long> ledgers = new ArrayList<>();
        for (String id : new String(data, StandardCharsets.US_ASCII).split(",")) {
            if (!id.isBlank()) {
                ledgers.add(Long.parseLong(id.trim()));
            }
        }
        return ledgers;
    }

    private LedgerHandle create(String log) throws Exception {
        int ensemble = job.address.get("ensemble").asInt();
        LedgerHandle ledger = client.createLedger(
            ensemble, job.address.get("write_quorum").asInt(), job.address.get("ack_quorum").asInt(), DIGEST, PASSWORD);
        note(log, ledger.getId());
        return ledger;
    }

    // ---- writing -----------------------------------------------------------------------------------------------------

    private final class Ledgers implements Appender, AddCallback {
        private final String log;
        private final Answers answers;
        private final ArrayDeque<Pending> waiting = new ArrayDeque<>(); // in the order of their entries
        private LedgerHandle ledger;
        private long confirmed; // entries of `ledger` that were acknowledged
        private int underWay; // adds of `ledger` whose callback is still to come
        private boolean broken;

        Ledgers(String log, Answers answers) throws Exception {
            this.log = log;
            this.answers = answers;
            ledger = create(log);
        }

        @Override
        public synchronized void append(Pending pending) throws Exception {
            while (broken) {
                wait();
            }
            waiting.add(pending);
            underWay++;
            ledger.asyncAddEntry(pending.payload, this, ledger);
        }

        @Override
        public void addComplete(int code, LedgerHandle whose, long entry, Object of) {
            Pending pending;
            synchronized (this) {
                underWay--;
                if (code != BKException.Code.OK || broken) {
                    notifyAll();
                    if (!broken) {
                        broken = true;
                        System.err.println(log + ": ledger " + ledger.getId() + " broke: " + BKException.getMessage(code));
                        Thread mending = new Thread(this::mend, "mend " + log);
                        mending.setDaemon(true);
                        mending.start();
                    }
                    return;
                }
                confirmed = entry + 1;
                pending = waiting.poll();
            }
            tell(pending, whose.getId(), entry);
        }

        private void tell(Pending pending, long id, long entry) {
            if (pending.count == 1) {
                answers.acked(pending, id, entry);
            } else {
                answers.acked(pending, id, entry, 0);
            }
        }

        private void mend() {
            long deadline = System.nanoTime() + job.patienceNs;
            String why = "";
            boolean recovered = false;
            while (true) {
                try {
                    synchronized (this) {
                        while (underWay > 0) {
                            wait();
                        }
                    }
                    if (!recovered) {
                        recover();
                        recovered = true;
                    }
                    LedgerHandle next = create(log);
                    synchronized (this) {
                        ledger = next;
                        confirmed = 0;
                        broken = false;
                        for (Pending pending : waiting) {
                            underWay++;
                            ledger.asyncAddEntry(pending.payload, this, ledger);
                        }
                        notifyAll();
                        return;
                    }
                } catch (Exception error) {
                    why = error.toString();
                }
                if (System.nanoTime() > deadline) {
                    giveUp(why);
                    deadline = Long.MAX_VALUE;
                }
                try {
                    Thread.sleep(RETRY_MS);
                } catch (InterruptedException end) {
                    return;
                }
            }
        }

        /** Close the failed ledger, and acknowledge the entries that are in it. */
        private void recover() throws Exception {
            try (LedgerHandle closed = client.openLedger(ledger.getId(), DIGEST, PASSWORD)) {
                long last = closed.getLastAddConfirmed();
                while (confirmed <= last && !waiting.isEmpty()) {
                    tell(waiting.poll(), ledger.getId(), confirmed++);
                }
            }
        }

        private void giveUp(String why) {
            synchronized (this) {
                while (!waiting.isEmpty()) {
                    answers.failed(waiting.poll(), why, true);
                }
            }
        }

        @Override
        public void close() throws Exception {
            ledger.close();
        }
    }

    // ---- reading -----------------------------------------------------------------------------------------------------

    private record Range(long first, long last, CompletableFuture<Enumeration<LedgerEntry>> entries) {}

    private final class LedgerReader implements Reader {
        private final String log;
        private List<Long> ledgers;
        private int at; // in `ledgers`
        private LedgerHandle ledger;
        private long failingSinceNs;
        private long end = UNKNOWN; // of a reader that does not follow: in the last ledger
        private long next; // entry of `ledger`
        // batch reads: v2 only, and only if every bookie has every entry
        private final boolean batched = !job.follow
            && job.address.get("ensemble").asInt() == job.address.get("write_quorum").asInt()
            && Boolean.parseBoolean(job.address.path("batch_reads").asText("true"));

        LedgerReader(String log, boolean tail) throws Exception {
            this.log = log;
            ledgers = ledgersOf(log);
            if (tail && !ledgers.isEmpty()) {
                at = ledgers.size() - 1;
                open();
                next = ledger.readLastConfirmed() + 1;
            }
        }

        private void open() throws Exception {
            ledger = client.openLedgerNoRecovery(ledgers.get(at), DIGEST, PASSWORD);
            next = 0;
        }

        @Override
        public boolean poll(boolean follow, Sink sink) throws Exception {
            if (!follow) {
                return pollToTheEnd(sink);
            }
            try {
                pollOn(sink);
                failingSinceNs = 0;
            } catch (BKException | ExecutionException error) { // a ledger without an entry yet, a bookie that has gone
                long now = System.nanoTime();
                failingSinceNs = failingSinceNs == 0 ? now : failingSinceNs;
                if (now - failingSinceNs > job.patienceNs) {
                    throw error;
                }
                Thread.sleep(TROUBLE_MS);
            }
            return true;
        }

        private void pollOn(Sink sink) throws Exception {
            if (ledger == null) {
                if (at >= ledgers.size()) {
                    ledgers = ledgersOf(log);
                    if (at >= ledgers.size()) {
                        Thread.sleep(RETRY_MS);
                        return;
                    }
                }
                open();
            }
            long last = ledger.getLastAddConfirmed();
            if (next <= last) {
                give(last, sink);
                return;
            }
            if (ledger.isClosed()) {
                if (next <= ledger.getLastAddConfirmed()) {
                    return; // closed in between, with more in it
                }
                ledger.close();
                ledger = null;
                at++;
                return;
            }
            await(sink);
        }

        /** Read one ledger per call. The end is that of the last ledger at the first call. */
        private boolean pollToTheEnd(Sink sink) throws Exception {
            if (end == UNKNOWN) {
                ledgers = ledgersOf(log);
                end = ledgers.isEmpty() ? -1 : endOf(ledgers.get(ledgers.size() - 1));
            }
            if (at >= ledgers.size()) {
                return false;
            }
            open();
            long last = at == ledgers.size() - 1 ? end : endOf(ledgers.get(at));
            if (last >= 0) {
                give(last, sink);
            }
            ledger.close();
            ledger = null;
            at++;
            return at < ledgers.size();
        }

        /** The last entry of a closed ledger; of an open one, the last add confirmed. */
        private long endOf(long id) throws Exception {
            try (LedgerHandle asked = client.openLedgerNoRecovery(id, DIGEST, PASSWORD)) {
                long confirmed = asked.readLastConfirmed();
                for (long waited = 0; waited < CLOSING_MS && !asked.isClosed(); waited += 10) {
                    Thread.sleep(10); // its writer may be about to close it
                }
                return asked.isClosed() ? asked.getLastAddConfirmed() : confirmed;
            }
        }

        /** Prefetch several ranges; deliver them in order. */
        private void give(long last, Sink sink) throws Exception {
            int step = Math.max(1, Math.min(RANGE_ENTRIES, READ_BYTES / job.recordBytes));
            ArrayDeque<Range> asked = new ArrayDeque<>();
            long ask = next;
            while (ask <= last || !asked.isEmpty()) {
                while (ask <= last && asked.size() < RANGES) {
                    long end = Math.min(last, ask + step - 1);
                    asked.add(new Range(ask, end, entries(ask, end)));
                    ask = end + 1;
                }
                Range range = asked.poll();
                give(range.entries.get(), sink);
                while (next <= range.last) { // a range that is large in bytes comes in parts
                    give(entries(next, range.last).get(), sink);
                }
            }
        }

        private CompletableFuture<Enumeration<LedgerEntry>> entries(long first, long end) {
            CompletableFuture<Enumeration<LedgerEntry>> answer = new CompletableFuture<>();
            AsyncCallback.ReadCallback told = (code, whose, found, of) -> {
                if (code == BKException.Code.OK) {
                    answer.complete(found);
                } else {
                    answer.completeExceptionally(BKException.create(code));
                }
            };
            if (batched && end > first) {
                ledger.asyncBatchReadEntries(first, (int) (end - first + 1), 2L * READ_BYTES, told, null);
            } else {
                ledger.asyncReadEntries(first, end, told, null);
            }
            return answer;
        }

        private void give(Enumeration<LedgerEntry> entries, Sink sink) throws Exception {
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                byte[] data = entry.getEntry();
                sink.given(data, 0, data.length, ledger.getId(), entry.getEntryId());
                next = entry.getEntryId() + 1;
            }
        }

        private void await(Sink sink) throws Exception {
            try (LastConfirmedAndEntry news = ledger.readLastAddConfirmedAndEntryAsync(next, POLL_MS, false).get()) {
                if (news.hasEntry()) {
                    byte[] data = news.getEntry().getEntryBytes();
                    sink.given(data, 0, data.length, ledger.getId(), news.getEntry().getEntryId());
                    next = news.getEntry().getEntryId() + 1;
                }
            }
        }

        @Override
        public void close() throws Exception {
            if (ledger != null) {
                ledger.close();
            }
        }
    }
}
