import java.io.IOException;

/** What the generator needs of a system's client library. Implementations have a constructor (Job). */
interface Peer extends AutoCloseable {
    /** Whether a batch of the application's own travels as one (else the generator hands its records over one by one). */
    boolean carriesBatches();

    /** A writer of one log. Answers go to `answers`, from any thread, in any order. */
    Appender appender(String log, Answers answers) throws Exception;

    /** A reader of one log that stands at its first record, or behind its last. */
    Reader reader(String log, boolean tail) throws Exception;

    @Override
    void close() throws Exception;

    interface Appender {
        /** Take it; the answer comes later, exactly once. May block while the library has no room. */
        void append(Pending pending) throws Exception;

        /** Let go, in order where possible. */
        void close() throws Exception;
    }

    interface Answers {
        /** The records lie at this position and the places after it. */
        void acked(Pending pending, long... position);

        void failed(Pending pending, String error, boolean unknown);
    }

    interface Reader {
        /**
         * Give what is there to `sink`, in order; wait for up to 100 ms or so if there is nothing.
         *
         * @return false once everything was given that was in the log when this reader was made (unless it follows)
         */
        boolean poll(boolean follow, Sink sink) throws Exception;

        void close() throws Exception;
    }

    interface Sink {
        /** Records of `size` bytes lie back to back in `length` bytes; the first is at `position`. */
        void given(byte[] bytes, int offset, int length, long... position) throws IOException;
    }

    /** Records of one log that travel together: usually one. */
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
