import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's own clients: an idempotent producer with acks=all, a consumer for each reader. A log is a topic of one partition. */
final class KafkaPeer implements Peer {
    private static final int PARTITION = 0;
    private static final long POLL_MS = 100;

    private final Job job;
    private final KafkaProducer<byte[], byte[]> producer;
    private final ArrayDeque<KafkaConsumer<byte[], byte[]>> idle = new ArrayDeque<>();

    KafkaPeer(Job job) {
        this.job = job;
        producer = job.produces ? new KafkaProducer<>(producing()) : null;
    }

    private Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", job.address.get("bootstrap").asText());
        settings.put("request.timeout.ms", job.address.get("request_timeout_ms").asText());
        return settings;
    }

    private Properties producing() {
        boolean alone = job.window == 1 || !job.mode.equals("window"); // latency counts: nothing waits for company
        long batch = Math.max(128L << 10, 16L * job.recordBytes); // eight times the default: each batch is synced
        if (job.batchRecords > 1) {
            batch = Math.max(batch, job.batchRecords * (job.recordBytes + 32L) + 1024);
        }
        Properties settings = common();
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("compression.type", "none");
        settings.put("linger.ms", job.address.path("linger_ms").asText(alone ? "0" : "5"));
        settings.put("batch.size", job.address.path("batch_size").asText(String.valueOf(batch)));
        settings.put("buffer.memory", String.valueOf(128 << 20));
        settings.put("max.request.size", String.valueOf(16 << 20));
        long patienceMs = job.patienceNs / 1_000_000;
        long request = Long.parseLong(settings.getProperty("request.timeout.ms"));
        settings.put("delivery.timeout.ms", String.valueOf(Math.max(patienceMs, request + 1000)));
        settings.put("max.block.ms", String.valueOf(patienceMs));
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        return settings;
    }

    private Properties consuming() {
        Properties settings = common();
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", "10000");
        settings.put("max.partition.fetch.bytes", String.valueOf(4 << 20));
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return settings;
    }

    /** The producer makes its own batches; `batch.size` is the size of an application's batch. */
    @Override
    public boolean carriesBatches() {
        return false;
    }

    @Override
    public Appender appender(String log, Answers answers) {
        producer.partitionsFor(log); // metadata now, and not with the first record
        return new Appender() {
            @Override
            public void append(Pending pending) {
                producer.send(new ProducerRecord<>(log, PARTITION, null, pending.payload), (place, error) -> {
                    if (error == null) {
                        answers.acked(pending, PARTITION, place.offset());
                    } else {
                        answers.failed(pending, error.toString(), !(error instanceof RecordTooLargeException));
                    }
                });
            }

            @Override
            public void close() {
                // the producer is closed with the peer
            }
        };
    }

    @Override
    public Reader reader(String log, boolean tail) {
        return new TopicReader(log, tail);
    }

    private synchronized KafkaConsumer<byte[], byte[]> borrow() {
        return idle.isEmpty() ? new KafkaConsumer<>(consuming()) : idle.poll();
    }

    private synchronized void giveBack(KafkaConsumer<byte[], byte[]> consumer) {
        idle.add(consumer);
    }

    @Override
    public void close() {
        if (producer != null) {
            producer.close(Duration.ofSeconds(5));
        }
    }

    private final class TopicReader implements Reader {
        private final List<TopicPartition> partition;
        private KafkaConsumer<byte[], byte[]> consumer;
        private long end = -1;

        TopicReader(String log, boolean tail) {
            partition = Collections.singletonList(new TopicPartition(log, PARTITION));
            if (job.follow) {
                open();
                if (tail) {
                    consumer.seekToEnd(partition);
                }
                consumer.position(partition.get(0)); // it is asked for now, and stands from now on
            }
        }

        private void open() {
            consumer = borrow();
            consumer.assign(partition);
            consumer.seekToBeginning(partition);
        }

        @Override
        public boolean poll(boolean follow, Sink sink) throws Exception {
            if (consumer == null) {
                open();
            }
            if (!follow && end < 0) {
                end = consumer.endOffsets(partition).get(partition.get(0));
            }
            if (!follow && consumer.position(partition.get(0)) >= end) {
                return false;
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(POLL_MS))) {
                sink.given(record.value(), 0, record.value().length, PARTITION, record.offset());
            }
            return true;
        }

        @Override
        public void close() {
            if (!job.follow) {
                consumer.assign(Collections.emptyList());
                giveBack(consumer);
            } else {
                consumer.close(Duration.ofSeconds(2));
            }
        }
    }
}
