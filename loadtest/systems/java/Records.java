import java.nio.ByteBuffer;
import java.util.Random;
import java.util.zip.CRC32;

/**
 * Records with producer, sequence and due time, as in loadtest/payload.py: crc32 u32 | producer u32 |
 * sequence u64 | due u64 (ns) | filler; big-endian; the CRC is of the filler first, then of the 20 bytes of the head.
 */
final class Records {
    static final int HEAD = 24;

    private final int producer;
    private final byte[] filler;
    private final CRC32 crc = new CRC32();

    /** Half of the filler repeats. */
    Records(int producer, int size, long seed) {
        if (size < HEAD) {
            throw new IllegalArgumentException("a record has at least " + HEAD + " bytes: record_bytes=" + size);
        }
        this.producer = producer;
        this.filler = new byte[size - HEAD];
        new Random(seed * 2654435761L + producer).nextBytes(filler);
        byte[] pattern = String.format("%08x", (int) (producer * 2654435761L)).getBytes();
        for (int i = filler.length / 2; i < filler.length; i++) {
            filler[i] = pattern[i % pattern.length];
        }
    }

    /** Not thread-safe. */
    byte[] make(long sequence, long dueNs) {
        byte[] record = new byte[HEAD + filler.length];
        ByteBuffer head = ByteBuffer.wrap(record);
        head.putInt(4, producer).putLong(8, sequence).putLong(16, dueNs);
        System.arraycopy(filler, 0, record, HEAD, filler.length);
        crc.reset();
        crc.update(filler, 0, filler.length);
        crc.update(record, 4, HEAD - 4);
        head.putInt(0, (int) crc.getValue());
        return record;
    }

    /** Whether the record of `length` bytes at `offset` has a matching CRC. */
    static boolean verifies(byte[] bytes, int offset, int length, CRC32 crc) {
        if (length < HEAD) {
            return false;
        }
        crc.reset();
        crc.update(bytes, offset + HEAD, length - HEAD);
        crc.update(bytes, offset + 4, HEAD - 4);
        return (int) crc.getValue() == ByteBuffer.wrap(bytes).getInt(offset);
    }

    static int producer(byte[] bytes, int offset) {
        return ByteBuffer.wrap(bytes).getInt(offset + 4);
    }

    static long sequence(byte[] bytes, int offset) {
        return ByteBuffer.wrap(bytes).getLong(offset + 8);
    }

    static long dueNs(byte[] bytes, int offset) {
        return ByteBuffer.wrap(bytes).getLong(offset + 16);
    }
}
