import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/** The history of one producer or reader (format: loadtest/systems/base.py); joins consecutive records into runs. */
final class History {
    private static final long RUN_NS = 50_000_000; // a run spans no more

    private final BufferedWriter file;
    private final Run[] runs;
    final long[] given; // records a log

    private static final class Run {
        char kind;
        int producer;
        long first;
        long count;
        long[] position;
        long atNs;
    }

    History(String path, int logs) throws IOException {
        file = Files.newBufferedWriter(Path.of(path));
        runs = new Run[logs];
        given = new long[logs];
    }

    void run(char kind, int log, int producer, long first, long many, long atNs, long... position) {
        Run run = runs[log];
        if (run == null) {
            run = runs[log] = new Run();
        }
        if (run.count > 0 && run.producer == producer && run.first + run.count == first
            && atNs - run.atNs < RUN_NS && follows(run, position)) {
            run.count += many;
            return;
        }
        flush(log);
        run.kind = kind;
        run.producer = producer;
        run.first = first;
        run.count = many;
        run.position = position.clone();
        run.atNs = atNs;
    }

    /** A line that is not a run: open runs of this log are written first. */
    void line(int log, String text) {
        flush(log);
        write(text);
    }

    void close() throws IOException {
        for (int log = 0; log < runs.length; log++) {
            flush(log);
        }
        file.close();
    }

    static String dotted(long... position) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < position.length; i++) {
            text.append(i > 0 ? "." : "").append(position[i]);
        }
        return text.length() > 0 ? text.toString() : "-";
    }

    private static boolean follows(Run run, long... position) {
        int last = position.length - 1;
        if (run.position.length != position.length) {
            return false;
        }
        return last < 0 || run.position[last] + run.count == position[last]
            && Arrays.equals(run.position, 0, last, position, 0, last);
    }

    private void flush(int log) {
        Run run = runs[log];
        if (run != null && run.count > 0) {
            write(run.kind + " " + log + " " + run.producer + " " + run.first + " " + run.count + " "
                + dotted(run.position) + " " + run.atNs);
            run.count = 0;
        }
    }

    private void write(String text) {
        try {
            file.write(text);
            file.write('\n');
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
