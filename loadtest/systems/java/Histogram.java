/** Times in whole microseconds, rounded to three significant digits. Not thread-safe. */
final class Histogram {
    private static final int EXACT = 1000;
    private static final int STEPS = 900; // of a decade: 100..999

    private final long[] counts = new long[EXACT + STEPS * 7];

    void add(long ns, long count) {
        long value = Math.max(0, (ns + 500) / 1000);
        int decade = 0;
        long rest = 0;
        while (value >= EXACT) {
            rest = value % 10;
            value /= 10;
            decade++;
        }
        if (decade > 0 && rest >= 5 && ++value == EXACT) {
            value = EXACT / 10;
            decade++;
        }
        int index = decade == 0 ? (int) value : EXACT + (decade - 1) * STEPS + (int) value - 100;
        counts[Math.min(index, counts.length - 1)] += count;
    }

    /** {"unit": "us", "counts": [[value, count], ...]} */
    String json() {
        StringBuilder text = new StringBuilder("{\"unit\": \"us\", \"counts\": [");
        String comma = "";
        for (int i = 0; i < counts.length; i++) {
            if (counts[i] > 0) {
                text.append(comma).append('[').append(value(i)).append(", ").append(counts[i]).append(']');
                comma = ", ";
            }
        }
        return text.append("]}").toString();
    }

    private static long value(int index) {
        if (index < EXACT) {
            return index;
        }
        long value = (index - EXACT) % STEPS + 100;
        for (int decade = (index - EXACT) / STEPS + 1; decade > 0; decade--) {
            value *= 10;
        }
        return value;
    }
}
