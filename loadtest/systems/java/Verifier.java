import java.util.HexFormat;
import java.util.zip.CRC32;

/** Splits a delivery into records, verifies them and passes them to the tally. Single-threaded. */
final class Verifier implements Peer.Sink {
    long bytes;

    private final Tally tally;
    private final int copy;
    private final int log;
    private final int recordBytes;
    private final CRC32 crc = new CRC32();

    Verifier(Tally tally, int copy, int log, int recordBytes) {
        this.tally = tally;
        this.copy = copy;
        this.log = log;
        this.recordBytes = recordBytes;
    }

    /** A single record has the delivery's position; of several, each has its index appended. */
    @Override
    public void given(byte[] data, int offset, int length, long... position) {
        bytes += length;
        if (length <= recordBytes || length % recordBytes != 0) {
            one(data, offset, length, position);
            return;
        }
        for (int slot = 0; slot < length / recordBytes; slot++) {
            long[] place = java.util.Arrays.copyOf(position, position.length + 1);
            place[position.length] = slot;
            one(data, offset + slot * recordBytes, recordBytes, place);
        }
    }

    private void one(byte[] data, int offset, int length, long... position) {
        if (Records.verifies(data, offset, length, crc)) {
            tally.read(copy, log, Records.producer(data, offset), Records.sequence(data, offset),
                Records.dueNs(data, offset), length, position);
        } else {
            String text = HexFormat.of().formatHex(data, offset, offset + Math.min(32, length));
            tally.damaged(copy, log, text, length, position);
        }
    }
}
