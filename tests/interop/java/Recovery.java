// Java's auditor, its replication worker, AutoRecovery, which is both, and a lock on a ledger as a worker takes it.
import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;

final class Recovery {
    private static final String NAME = "127.0.0.1:1"; // in votes and locks

    private final Map<Integer, AutoCloseable> running = new ConcurrentHashMap<>();
    private final AtomicInteger next = new AtomicInteger();

    void register(Map<String, Peer.Command> commands) {
        commands.put("recovery.start", this::start);
        commands.put("recovery.lock", this::lock);
        commands.put("recovery.stop", this::stop);
    }

    private int keep(AutoCloseable end) {
        int name = next.incrementAndGet();
        running.put(name, end);
        return name;
    }

    // part: auditor, worker, or both. conf: properties of ServerConfiguration.
    private Object start(JsonNode a) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(a.get("uri").asText());
        conf.setZkTimeout(10000);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setAllowLoopback(true);
        conf.setBookiePort(1);
        a.path("conf").fields().forEachRemaining(field -> conf.setProperty(field.getKey(), field.getValue().asText()));
        switch (a.get("part").asText()) {
            case "auditor": {
                AuditorElector auditor = new AuditorElector(NAME, conf);
                auditor.start().get();
                return keep(auditor::shutdown);
            }
            case "worker": {
                ReplicationWorker worker = new ReplicationWorker(conf);
                worker.start();
                return keep(worker::shutdown);
            }
            default: {
                AutoRecoveryMain both = new AutoRecoveryMain(conf);
                both.start();
                return keep(both::shutdown);
            }
        }
    }

    // The lock ends with the session, when it is stopped.
    private Object lock(JsonNode a) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(a.get("uri").asText());
        conf.setZkTimeout(10000);
        BookKeeper client = new BookKeeper(conf);
        client.getLedgerManagerFactory().newLedgerUnderreplicationManager()
            .acquireUnderreplicatedLedger(a.get("ledger").asLong());
        return keep(client::close);
    }

    private Object stop(JsonNode a) throws Exception {
        running.remove(a.get("handle").asInt()).close();
        return null;
    }
}
