// The Java BookKeeper client, v2 wire, as a peer in tests: opens, reads, writes, fences ledgers. Run as a single source file:
//   java -cp 'LIB/*' LedgerTool.java METADATA_URI COMMAND ARGUMENTS
// Prints one JSON line per result on standard output, `end` last; ends by halt, since a live client's threads keep the JVM.
import java.util.Base64;
import java.util.Enumeration;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class LedgerTool {
    static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;

    public static void main(String[] args) {
        int status = 1;
        try {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(args[0]);
            conf.setUseV2WireProtocol(true);
            conf.setZkTimeout(10000);
            try (BookKeeper client = new BookKeeper(conf)) {
                switch (args[1]) {
                    case "read" -> read(client, Long.parseLong(args[2]), Boolean.parseBoolean(args[3]));
                    case "write" -> write(client, Integer.parseInt(args[2]), Boolean.parseBoolean(args[3]));
                    default -> throw new IllegalArgumentException(args[1]);
                }
            }
            System.out.println("end");
            status = 0;
        } catch (BKException error) {
            System.out.println("{\"error\": " + error.getCode() + "}");
        } catch (Throwable error) {
            error.printStackTrace();
        } finally {
            System.out.flush();
            Runtime.getRuntime().halt(status);
        }
    }

    // recover: openLedger fences and closes; otherwise a reader that leaves the writer alone.
    static void read(BookKeeper client, long id, boolean recover) throws Exception {
        LedgerHandle ledger = recover
            ? client.openLedger(id, DIGEST, new byte[0])
            : client.openLedgerNoRecovery(id, DIGEST, new byte[0]);
        long last = ledger.getLastAddConfirmed();
        System.out.println("{\"lac\": " + last + ", \"closed\": " + ledger.isClosed() + ", \"length\": " + ledger.getLength() + "}");
        for (long from = 0; from <= last; from += 100) {
            Enumeration<LedgerEntry> entries = ledger.readEntries(from, Math.min(last, from + 99));
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                String payload = Base64.getEncoder().encodeToString(entry.getEntry());
                System.out.println("{\"entry\": " + entry.getEntryId() + ", \"payload\": \"" + payload + "\"}");
            }
        }
    }

    // Writes `count` entries "java-0", "java-1", ...; closes the ledger or leaves it open as a dead writer would.
    static void write(BookKeeper client, int count, boolean close) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, DIGEST, new byte[0]);
        for (int i = 0; i < count; i++) {
            ledger.addEntry(("java-" + i).getBytes("UTF-8"));
        }
        System.out.println("{\"ledger\": " + ledger.getId() + "}");
        if (close) {
            ledger.close();
        }
    }
}
