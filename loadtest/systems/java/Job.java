import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;

/** A generator's job; fields: see loadtest/systems/base.py. */
final class Job {
    static final ObjectMapper JSON = new ObjectMapper();

    final JsonNode node;
    final boolean produces;
    final JsonNode address;
    final List<String> logs = new ArrayList<>();
    final int recordBytes;
    final String history;
    final long secondsNs;
    final long warmupNs;
    final long patienceNs;

    // producers
    final int producer;
    final String mode;
    final int window;
    final double rate;
    final int batchRecords;
    final long records; // stop after so many
    final double zipf;
    final long seed;

    // readers
    final boolean tail;
    final boolean follow;
    final int copies; // readers in this process that each read everything

    Job(String line) throws Exception {
        node = JSON.readTree(line);
        produces = node.get("kind").asText().equals("produce");
        address = node.get("address");
        node.get("logs").forEach(log -> logs.add(log.asText()));
        recordBytes = node.get("record_bytes").asInt();
        history = node.get("history").asText();
        secondsNs = (long) (node.path("seconds").asDouble(0) * 1e9);
        warmupNs = (long) (node.path("warmup_s").asDouble(0) * 1e9);
        patienceNs = (long) (node.path("patience_s").asDouble(60) * 1e9);
        producer = node.path("producer").asInt(0);
        mode = node.path("mode").asText("window");
        // in mode await, each task is one pending record
        window = Math.max(1, mode.equals("await") ? node.path("tasks").asInt(1) : node.path("window").asInt(1));
        rate = node.path("rate").asDouble(0);
        batchRecords = Math.max(1, node.path("batch_records").asInt(1));
        long bound = node.path("records").asLong(0);
        records = bound > 0 ? bound : Long.MAX_VALUE;
        zipf = node.path("zipf").asDouble(0);
        seed = node.path("seed").asLong(0);
        tail = node.path("start").asText("start").equals("tail");
        follow = node.path("follow").asBoolean(false);
        copies = produces ? 1 : Math.max(1, node.path("copies").asInt(1));
    }

    /** The value of --option, else `otherwise`. */
    String option(String key, String otherwise) {
        return node.path("options").path(key).asText(otherwise);
    }
}
