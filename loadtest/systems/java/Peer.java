import java.io.IOException;

/** What the generator needs of a system's client library. Implementations have a constructor (Job). */
interface Peer extends AutoCloseable {
    /** Whether an application's batch is sent as one unit (else the generator hands its records over one by one). */
    boolean carriesBatches();

    /** A writer of one log. Answers go to `answers`, from any thread, in any order. */
    Appender appender(String log, Answers answers) throws Exception;

    /** A reader of one log, positioned at its first record or after its last. */
    Reader reader(String log, boolean tail) throws Exception;

    @Override
    void close() throws Exception;

    interface Appender {
        /** Append; the answer comes later, exactly once. May block while the library's buffers are full. */
        void append(Pending pending) throws Exception;

        /** Close, in order where possible. */
        void close() throws Exception;
    }

    interface Answers {
        /** The records are at this position and the positions after it. */
        void acked(Pending pending, long... position);

        void failed(Pending pending, String error, boolean unknown);
    }

    interface Reader {
        /**
         * Pass available records to `sink`, in order; wait up to about 100 ms if there are none.
         *
         * @return false once all records that were in the log when this reader was created are read (unless it follows)
         */
        boolean poll(boolean follow, Sink sink) throws Exception;

        void close() throws Exception;
    }

    interface Sink {
        /** `length` bytes of consecutive records of `size` bytes; the first is at `position`. */
        void given(byte[] bytes, int offset, int length, long... position) throws IOException;
    }

    /** Records of one log that are sent together: usually one. */
    final class Pending {
        final int log;
        final long first;
        final int count;
        final long dueNs;
        final long stepNs; // between the dues of two records of it
        final byte[] payload; // all records, back to back
        long sentNs;

        Pending(int log, long first, int count, long dueNs, long stepNs, byte[] payload) {
            this.log = log;
            this.first = first;
            this.count = count;
            this.dueNs = dueNs;
            this.stepNs = stepNs;
            this.payload = payload;
        }
    }
}
