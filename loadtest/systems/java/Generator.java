import com.fasterxml.jackson.databind.JsonNode;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/**
 * A generator in Java: `java Generator PEER_CLASS`; protocol on stdin and stdout: loadtest/systems/base.py.
 * Ends by halt, because threads of an open client would keep the JVM alive.
 */
public final class Generator {
    private static final long SLOT_NS = 1_000_000; // of the open loop
    private static final long TICK_MS = 50;
    private static final long OPEN_BYTES = 64 << 20; // under way at most in the open loop; then handing over waits
    private static final long LATE_NS = 100_000_000; // for so long after the end of the open loop what was due is handed over
    private static final int OPENING_THREADS = 16;
    private static final int TOUCHES = 64; // first records under way at once
    private static final int FOLLOWING_THREADS = 64;
    private static final int READING_THREADS = 4;
    private static final PrintStream OUT = System.out;

    private final Job job;
    private final Tally tally;
    private final Peer peer;
    private final CountDownLatch go = new CountDownLatch(1);
    private final AtomicReference<Map<Integer, Long>> until = new AtomicReference<>();
    private volatile long startNs;
    private volatile boolean stopping;
    private final OperatingSystemMXBean system =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private volatile double cpuBegin;
    private volatile double cpuEnd = -1;

    private Generator(Job job, Peer peer) throws Exception {
        this.job = job;
        this.peer = peer;
        tally = new Tally(job);
    }

    public static void main(String[] args) {
        int status = 1;
        System.setOut(System.err); // libraries that print must not speak in our place
        try {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            Job job = new Job(in.readLine());
            Peer peer = (Peer) Class.forName(args[0]).getDeclaredConstructor(Job.class).newInstance(job);
            new Generator(job, peer).run(in);
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        } finally {
            System.err.flush();
            OUT.flush();
            Runtime.getRuntime().halt(status);
        }
    }

    private void run(BufferedReader in) throws Exception {
        Thread listening = new Thread(() -> listen(in), "listen");
        listening.setDaemon(true);
        Thread ticking = new Thread(this::tick, "tick");
        ticking.setDaemon(true);
        String result;
        if (job.produces) {
            Producing producing = new Producing();
            say("{\"event\": \"ready\"}");
            listening.start();
            ticking.start();
            go.await();
            result = producing.run();
        } else {
            Reading[] readings = new Reading[job.logs.size() * job.copies];
            together(readings.length, i -> readings[i] = new Reading(i / job.logs.size(), i % job.logs.size()));
            say("{\"event\": \"ready\"}");
            listening.start();
            ticking.start();
            if (!job.follow) {
                go.await();
            }
            result = read(readings);
        }
        tally.close();
        ticking.interrupt();
        ticking.join();
        say(result);
        try {
            peer.close();
        } catch (Exception error) {
            System.err.println("closing: " + error); // all was told by then
        }
    }

    // ---- orders from the runner, events to it --------------------------------------------------------------------------

    private void listen(BufferedReader in) {
        try {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JsonNode said = Job.JSON.readTree(line);
                switch (said.path("do").asText()) {
                    case "go" -> begin(said.get("start_ns").asLong());
                    case "until" -> until.set(counts(said.get("counts")));
                    default -> stop();
                }
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
        stop();
    }

    /** Also before `go`. */
    private void stop() {
        stopping = true;
        if (startNs == 0) {
            begin(System.nanoTime());
        }
    }

    private void begin(long atNs) {
        tally.begin(atNs);
        startNs = atNs;
        go.countDown();
    }

    private Map<Integer, Long> counts(JsonNode node) {
        Map<Integer, Long> counts = new HashMap<>();
        node.fields().forEachRemaining(entry -> {
            int log = job.logs.indexOf(entry.getKey());
            counts.put(log >= 0 ? log : Integer.parseInt(entry.getKey()), entry.getValue().asLong());
        });
        return counts;
    }

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }

    /** Sends ticks, and measures the CPU time of the measured seconds. */
    private void tick() {
        long told = 0;
        try {
            while (true) {
                Thread.sleep(TICK_MS);
                long now = System.nanoTime();
                if (startNs != 0 && cpuBegin == 0 && now >= startNs + job.warmupNs) {
                    cpuBegin = cpuS();
                }
                if (startNs != 0 && cpuEnd < 0 && job.secondsNs > 0 && now >= startNs + job.warmupNs + job.secondsNs) {
                    cpuEnd = cpuS();
                }
                long count = tally.count();
                if (count != told) {
                    told = count;
                    say(tally.tick());
                }
            }
        } catch (InterruptedException end) {
            // the result follows
        }
    }

    private double cpuS() {
        return system.getProcessCpuTime() / 1e9;
    }

    private double measuredCpuS() {
        return (cpuEnd < 0 ? cpuS() : cpuEnd) - cpuBegin;
    }

    private double measuredS() {
        double until = System.nanoTime();
        if (job.secondsNs > 0) {
            until = Math.min(until, startNs + job.warmupNs + job.secondsNs);
        }
        return Math.max(0, (until - startNs - job.warmupNs) / 1e9);
    }

    private interface Opening {
        void open(int log) throws Exception;
    }

    /** Run a task for each log, several at a time. */
    private static void together(int logs, Opening opening) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(Math.min(logs, OPENING_THREADS));
        Future<?>[] all = new Future<?>[logs];
        for (int i = 0; i < logs; i++) {
            int log = i;
            all[i] = threads.submit(() -> {
                opening.open(log);
                return null;
            });
        }
        for (Future<?> one : all) {
            one.get();
        }
        threads.shutdown();
    }

    // ---- producing ---------------------------------------------------------------------------------------------------

    private final class Producing implements Peer.Answers {
        private final Peer.Appender[] appenders = new Peer.Appender[job.logs.size()];
        private final long[] next = new long[job.logs.size()];
        private final Records records = new Records(job.producer, job.recordBytes, job.seed);
        private final Histogram delay = new Histogram();
        private final boolean open = job.mode.equals("open");
        private final int together = peer.carriesBatches() ? job.batchRecords : 1;
        private final int permits = open
            ? (int) Math.max(1000, Math.min(200_000, OPEN_BYTES / job.recordBytes))
            : Math.max(job.window, together);
        private final Semaphore room = new Semaphore(permits);
        private final double[] shares = shares(job.logs.size(), job.zipf);
        private final Random random = new Random(job.seed);
        private int turn;
        private long sent;

        Producing() throws Exception {
            together(appenders.length, log -> appenders[log] = peer.appender(job.logs.get(log), this));
            touchAll();
        }

        /** Append one record to each log, so that all are open when the load begins. */
        private void touchAll() throws Exception {
            int atOnce = Math.min(permits, TOUCHES);
            for (int log = 0; log < appenders.length; log++) {
                room.acquire();
                append(log, 1, System.nanoTime(), 0);
                if (log % atOnce == atOnce - 1) {
                    awaitAll();
                }
            }
            awaitAll();
        }

        private void awaitAll() throws Exception {
            if (!room.tryAcquire(permits, job.patienceNs, TimeUnit.NANOSECONDS)) {
                throw new IllegalStateException("the first records of the logs were not acknowledged: " + tally.errors());
            }
            room.release(permits);
        }

        String run() throws Exception {
            long endNs = job.secondsNs > 0 ? startNs + job.warmupNs + job.secondsNs : Long.MAX_VALUE;
            while (!stopping && System.nanoTime() < startNs) {
                LockSupport.parkNanos(Math.min(SLOT_NS, startNs - System.nanoTime()));
            }
            if (open) {
                openLoop(endNs);
            } else {
                closedLoop(endNs);
            }
            double measuredS = measuredS();
            if (!room.tryAcquire(permits, job.patienceNs, TimeUnit.NANOSECONDS)) {
                tally.error((permits - room.availablePermits()) + " records had no answer in the time that is given to one");
            }
            double cpuS = measuredCpuS();
            tally.sent(next);
            String result = tally.result(sent, delay, measuredS, cpuS);
            for (Peer.Appender appender : appenders) {
                try {
                    appender.close();
                } catch (Exception error) {
                    System.err.println("closing a log: " + error);
                }
            }
            return result;
        }

        private void closedLoop(long endNs) throws Exception {
            while (!stopping && sent < job.records && System.nanoTime() < endNs) {
                if (!room.tryAcquire(together, 20, TimeUnit.MILLISECONDS)) {
                    continue;
                }
                append(together, System.nanoTime(), 0);
            }
        }

        private void openLoop(long endNs) throws Exception {
            double stepNs = 1e9 / job.rate;
            long handed = 0; // records that were due before
            for (long slot = 1; !stopping && sent < job.records; slot++) {
                long now = Math.min(System.nanoTime(), endNs);
                while (!stopping && sent < job.records && startNs + (long) ((handed + together - 1) * stepNs) < now) {
                    boolean hasRoom = room.tryAcquire(together, 20, TimeUnit.MILLISECONDS);
                    while (!hasRoom && !isLate(endNs)) {
                        hasRoom = room.tryAcquire(together, 20, TimeUnit.MILLISECONDS);
                    }
                    if (isLate(endNs)) { // what is not handed over by now has waited so long already
                        if (hasRoom) {
                            room.release(together); // or the end would wait for an answer to what was never asked
                        }
                        if (!stopping) {
                            tally.behind(handed, stepNs, endNs);
                        }
                        return;
                    }
                    append(together, startNs + (long) (handed * stepNs), (long) stepNs);
                    handed += together;
                    now = Math.min(System.nanoTime(), endNs);
                }
                if (now >= endNs) {
                    return;
                }
                long next = startNs + slot * SLOT_NS;
                if (next > now) {
                    LockSupport.parkNanos(next - now);
                } else {
                    slot = (now - startNs) / SLOT_NS;
                }
            }
        }

        private boolean isLate(long endNs) {
            return stopping || System.nanoTime() >= endNs + LATE_NS;
        }

        private void append(int count, long dueNs, long stepNs) throws Exception {
            append(pick(), count, dueNs, stepNs);
        }

        private void append(int log, int count, long dueNs, long stepNs) throws Exception {
            long first = next[log];
            byte[] payload;
            if (count == 1) {
                payload = records.make(first, dueNs);
            } else {
                payload = new byte[count * job.recordBytes];
                for (int i = 0; i < count; i++) {
                    byte[] record = records.make(first + i, dueNs + i * stepNs);
                    System.arraycopy(record, 0, payload, i * job.recordBytes, job.recordBytes);
                }
            }
            Peer.Pending pending = new Peer.Pending(log, first, count, dueNs, stepNs, payload);
            next[log] += count;
            sent += count;
            pending.sentNs = System.nanoTime();
            if (open && startNs != 0) {
                delay.add(pending.sentNs - dueNs, count);
            }
            appenders[log].append(pending);
        }

        private int pick() {
            if (appenders.length == 1) {
                return 0;
            }
            if (shares == null) {
                turn = turn + 1 == appenders.length ? 0 : turn + 1;
                return turn;
            }
            int at = java.util.Arrays.binarySearch(shares, random.nextDouble() * shares[shares.length - 1]);
            return Math.min(appenders.length - 1, at < 0 ? -at - 1 : at);
        }

        private static double[] shares(int logs, double zipf) {
            if (zipf <= 0 || logs == 1) {
                return null;
            }
            double[] shares = new double[logs];
            double sum = 0;
            for (int i = 0; i < logs; i++) {
                sum += Math.pow(i + 1, -zipf);
                shares[i] = sum;
            }
            return shares;
        }

        @Override
        public void acked(Peer.Pending pending, long... position) {
            tally.acked(pending, position);
            room.release(pending.count);
        }

        @Override
        public void failed(Peer.Pending pending, String error, boolean unknown) {
            tally.failed(pending, error, unknown);
            room.release(pending.count);
        }
    }

    // ---- reading -----------------------------------------------------------------------------------------------------

    /** One reader of one log. */
    private final class Reading {
        private final int copy;
        private final int log;
        private final Peer.Reader reader;
        private final Verifier verifier;
        boolean ended;

        Reading(int copy, int log) throws Exception {
            this.copy = copy;
            this.log = log;
            reader = peer.reader(job.logs.get(log), job.tail);
            verifier = new Verifier(tally, copy, log, job.recordBytes);
        }

        /** Read on for a while; false once there is nothing more to read. */
        boolean step() throws Exception {
            boolean more = reader.poll(job.follow, verifier);
            Map<Integer, Long> counts = until.get();
            if (job.follow && counts != null) {
                more = tally.given(copy, log) < counts.getOrDefault(log, 0L);
            } else if (!more) {
                tally.end(copy, log);
            }
            if (!more) {
                ended = true;
                reader.close();
            }
            return more;
        }
    }

    private String read(Reading[] readings) throws Exception {
        int threads = Math.min(readings.length, job.follow ? FOLLOWING_THREADS : READING_THREADS);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        Future<?>[] all = new Future<?>[threads];
        for (int i = 0; i < threads; i++) {
            int first = i;
            all[i] = pool.submit(() -> {
                readSome(readings, first, threads);
                return null;
            });
        }
        for (Future<?> one : all) {
            try {
                one.get();
            } catch (ExecutionException error) {
                error.printStackTrace();
                tally.error(String.valueOf(error.getCause()));
            }
        }
        boolean complete = true;
        for (Reading reading : readings) {
            complete &= reading.ended;
        }
        return tally.result(measuredS(), measuredCpuS(), complete);
    }

    private void readSome(Reading[] readings, int first, int step) throws Exception {
        boolean any = true;
        while (any && !stopping) {
            any = false;
            for (int i = first; i < readings.length && !stopping; i += step) {
                if (readings[i].ended) {
                    continue;
                }
                any = true;
                // without following, read each log to its end; else read all in turn
                while (readings[i].step() && !job.follow && !stopping) {
                    continue;
                }
            }
        }
    }
}
