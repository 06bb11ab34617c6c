package statelake.kafka;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Many records in one call: Python would need several calls for each of them. */
public final class KafkaRecords {

    private static final Duration A_MOMENT = Duration.ofMillis(200);

    private KafkaRecords() {}

    /**
     * Gives records to a producer, which sends them on; what cannot be sent fails its transaction.
     *
     * @param frames the records one after the other: time in milliseconds (8 bytes; -1: now), key, value, the number of
     *     headers (4 bytes) and for each of them its name and value. A part is its length (4 bytes; -1: null) and its
     *     bytes. All numbers are big-endian.
     */
    public static void send(Producer producer, String topic, byte[] frames) throws IOException {
        DataInputStream input = new DataInputStream(new ByteArrayInputStream(frames));
        while (input.available() > 0) {
            long time = input.readLong();
            byte[] key = part(input);
            byte[] value = part(input);
            List headers = new ArrayList();
            for (int left = input.readInt(); left > 0; left--) {
                String name = new String(part(input), StandardCharsets.UTF_8);
                headers.add(new RecordHeader(name, part(input)));
            }
            Long timestamp = time < 0 ? null : Long.valueOf(time);
            producer.send(new ProducerRecord(topic, (Integer) null, timestamp, key, value, headers));
        }
    }

    /**
     * The newest value of each key in a topic of one partition: key, value, key, value, and so on.
     *
     * <p>With {@code isolation.level=read_committed} a transaction that is still open hides all that comes behind its
     * beginning. So the end that must be reached is the one that others see who read everything.
     *
     * @param end the offset to read up to.
     * @param patienceMs how long to wait for open transactions.
     */
    public static String[] newest(Consumer consumer, String topic, long end, long patienceMs)
            throws TimeoutException {
        TopicPartition only = new TopicPartition(topic, 0);
        List partitions = new ArrayList();
        partitions.add(only);
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map newest = new LinkedHashMap();
        long deadline = System.currentTimeMillis() + patienceMs;
        while (consumer.position(only) < end) {
            if (System.currentTimeMillis() > deadline) {
                throw new TimeoutException(
                        "offset " + consumer.position(only) + " of " + end + " was reached: a transaction is open there");
            }
            ConsumerRecords records = consumer.poll(A_MOMENT);
            for (Iterator all = records.iterator(); all.hasNext(); ) {
                ConsumerRecord record = (ConsumerRecord) all.next();
                newest.put(text((byte[]) record.key()), text((byte[]) record.value()));
            }
        }
        List texts = new ArrayList();
        for (Iterator all = newest.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry one = (Map.Entry) all.next();
            texts.add(one.getKey());
            texts.add(one.getValue());
        }
        return (String[]) texts.toArray(new String[0]);
    }

    private static byte[] part(DataInputStream input) throws IOException {
        int length = input.readInt();
        if (length < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        input.readFully(bytes);
        return bytes;
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
