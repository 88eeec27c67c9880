import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** Counts, histograms and the history of one generator, under one lock. */
final class Tally {
    static final long GAP_NS = 20_000_000;
    private static final long SLOT_NS = 100_000_000;
    private static final int ERRORS_MAX = 10;

    private final Job job;
    private final History[] histories; // one, or one a copy of a reader
    private final Histogram response = new Histogram();
    private final Histogram service = new Histogram();
    private final Histogram delivery = new Histogram();
    private final Set<String> errors = new LinkedHashSet<>();
    private final List<long[]> gaps = new ArrayList<>();
    private long[] timeline = new long[64];
    private int slots;
    private long startNs = Long.MAX_VALUE;
    private long measureNs = Long.MAX_VALUE;
    private long measureEndNs = Long.MAX_VALUE;
    private long count; // acknowledged, or read
    private long bytes;
    private long measured;
    private long measuredBytes;
    private long firstNs;
    private long lastNs;
    private long behind;
    private long refusedDueNs = Long.MAX_VALUE; // of those refused since the last answer

    Tally(Job job) throws IOException {
        this.job = job;
        histories = new History[job.copies];
        for (int i = 0; i < job.copies; i++) {
            histories[i] = new History(job.copies == 1 ? job.history : job.history + "." + i, job.logs.size());
        }
    }

    synchronized void begin(long startNs) {
        this.startNs = startNs;
        measureNs = startNs + job.warmupNs;
        measureEndNs = job.secondsNs > 0 ? measureNs + job.secondsNs : Long.MAX_VALUE;
    }

    // ---- producers ---------------------------------------------------------------------------------------------------

    synchronized void acked(Peer.Pending pending, long... position) {
        long now = System.nanoTime();
        long from = Math.max(lastNs, Math.min(pending.dueNs, refusedDueNs)); // no refusal ends a gap
        refusedDueNs = Long.MAX_VALUE;
        if (startNs != Long.MAX_VALUE && now - from >= GAP_NS) {
            gaps.add(new long[] {from, now});
        }
        lastNs = now;
        if (firstNs == 0) {
            firstNs = now;
        }
        count += pending.count;
        if (now >= startNs) {
            int slot = (int) ((now - startNs) / SLOT_NS);
            if (slot >= timeline.length) {
                timeline = Arrays.copyOf(timeline, slot * 2);
            }
            timeline[slot] += pending.count;
            slots = Math.max(slots, slot + 1);
        }
        if (now >= measureNs && now < measureEndNs) {
            measured += pending.count;
        }
        for (int i = 0; i < pending.count; i++) {
            long due = pending.dueNs + i * pending.stepNs;
            if (due >= measureNs && due < measureEndNs) {
                response.add(now - due, 1);
                service.add(now - pending.sentNs, 1);
            }
        }
        histories[0].run('A', pending.log, job.producer, pending.first, pending.count, pending.sentNs, position);
    }

    synchronized void failed(Peer.Pending pending, String error, boolean unknown) {
        error(error);
        refusedDueNs = Math.min(refusedDueNs, pending.dueNs);
        histories[0].line(pending.log, "F " + pending.log + " " + job.producer + " " + pending.first + " " + pending.count + (unknown ? " 1" : " 0"));
    }

    /** From this record on, records due before the end were not handed over: count them with their wait until now. */
    synchronized void behind(long from, double stepNs, long endNs) {
        long now = System.nanoTime();
        for (long i = from; startNs + (long) (i * stepNs) < endNs; i++) {
            long due = startNs + (long) (i * stepNs);
            behind++;
            if (due >= measureNs && due < measureEndNs) {
                response.add(now - due, 1);
            }
        }
    }

    /** Per log: all sequences below may have been handed over. */
    synchronized void sent(long[] below) {
        for (int log = 0; log < below.length; log++) {
            if (below[log] > 0) {
                histories[0].line(log, "S " + log + " " + job.producer + " " + below[log]);
            }
        }
    }

    // ---- readers -----------------------------------------------------------------------------------------------------

    synchronized void read(int copy, int log, int producer, long sequence, long dueNs, int size, long... position) {
        long now = System.nanoTime();
        seen(copy, log, now, size);
        if (dueNs >= measureNs && dueNs < measureEndNs) {
            delivery.add(now - dueNs, 1);
        }
        histories[copy].run('R', log, producer, sequence, 1, now, position);
    }

    synchronized void damaged(int copy, int log, String text, int size, long... position) {
        seen(copy, log, System.nanoTime(), size);
        histories[copy].line(log, "X " + log + " " + History.dotted(position) + " " + text);
    }

    synchronized void end(int copy, int log) {
        histories[copy].line(log, "E " + log);
    }

    synchronized long given(int copy, int log) {
        return histories[copy].given[log];
    }

    private void seen(int copy, int log, long now, int size) {
        if (firstNs == 0) {
            firstNs = now;
        }
        lastNs = now;
        histories[copy].given[log]++;
        count++;
        bytes += size;
        if (!job.follow || now >= measureNs && now < measureEndNs) {
            measured++;
            measuredBytes += size;
        }
    }

    // ---- both --------------------------------------------------------------------------------------------------------

    synchronized void error(String error) {
        if (errors.size() < ERRORS_MAX) {
            errors.add(error);
        }
    }

    synchronized String errors() {
        return errors.toString();
    }

    synchronized long count() {
        return count;
    }

    synchronized String tick() {
        return job.produces
            ? "{\"event\": \"tick\", \"acked\": " + count + ", \"last_ack_ns\": " + lastNs + "}"
            : "{\"event\": \"tick\", \"read\": " + count + ", \"last_ns\": " + lastNs + "}";
    }

    /** Result of a producer. */
    synchronized String result(long sent, Histogram delay, double measuredS, double cpuS) throws Exception {
        if (count < sent) {
            gaps.add(new long[] {Math.max(lastNs, startNs), System.nanoTime()});
        }
        StringBuilder text = new StringBuilder("{\"event\": \"result\"");
        field(text, "sent", sent);
        field(text, "acked", count);
        field(text, "failed", sent - count);
        field(text, "behind", behind);
        raw(text, "errors", Job.JSON.writeValueAsString(errors));
        field(text, "measured", measured);
        raw(text, "measured_s", decimal(measuredS));
        field(text, "first_ack_ns", firstNs);
        field(text, "last_ack_ns", lastNs);
        raw(text, "response", response.json());
        raw(text, "service", service.json());
        raw(text, "delay", delay.json());
        raw(text, "timeline", Arrays.toString(Arrays.copyOf(timeline, slots)));
        raw(text, "gaps", Job.JSON.writeValueAsString(gaps));
        return last(text, cpuS);
    }

    /** Result of a reader. */
    synchronized String result(double windowS, double cpuS, boolean ended) throws Exception {
        double measuredS = job.follow ? windowS : Math.max(1e-9, (lastNs - firstNs) / 1e9);
        StringBuilder text = new StringBuilder("{\"event\": \"result\"");
        field(text, "read", count);
        field(text, "read_bytes", bytes);
        raw(text, "errors", Job.JSON.writeValueAsString(errors));
        field(text, "measured", measured);
        field(text, "measured_bytes", measuredBytes);
        raw(text, "measured_s", decimal(measuredS));
        field(text, "first_ns", firstNs);
        field(text, "last_ns", lastNs);
        raw(text, "delivery", delivery.json());
        raw(text, "ended", String.valueOf(ended));
        return last(text, cpuS);
    }

    synchronized void close() throws IOException {
        for (History history : histories) {
            history.close();
        }
    }

    private static void field(StringBuilder text, String name, long value) {
        raw(text, name, String.valueOf(value));
    }

    private static void raw(StringBuilder text, String name, String value) {
        text.append(", \"").append(name).append("\": ").append(value);
    }

    private static String decimal(double value) {
        return String.format(Locale.ROOT, "%.6f", value);
    }

    private static String last(StringBuilder text, double cpuS) throws IOException {
        long peak = 0;
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                peak = Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        raw(text, "cpu_s", decimal(cpuS));
        field(text, "rss_peak", peak);
        return text.append("}").toString();
    }
}
