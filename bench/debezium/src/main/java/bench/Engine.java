package bench;

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs Debezium's embedded engine as configured by a properties file, and notes when events are handed over.
 *
 * <pre>
 * Engine config.properties drain 1000000    until so many events came: prints their number and the
 *                                           microseconds of the first, the middle and the last
 * Engine config.properties follow           until standard input ends: prints each event's ID and the microseconds
 * </pre>
 *
 * Events stay in Connect's own form: no serialization is charged to Debezium. Times are the wall clock's, to be
 * compared with those of other processes on the machine.
 */
public final class Engine {
    private final long wanted;
    private final PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);
    private final CountDownLatch done = new CountDownLatch(1);
    private long events;
    private long firstMicros;
    private long middleMicros;
    private long middleEvents;
    private long lastMicros;

    private Engine(long wanted) {
        this.wanted = wanted;
    }

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            config.load(reader);
        }
        boolean drains = arguments[1].equals("drain");
        new Engine(drains ? Long.parseLong(arguments[2]) : -1).run(config);
    }

    private void run(Properties config) throws Exception {
        AtomicReference<String> failure = new AtomicReference<>();
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(config)
                .using((DebeziumEngine.CompletionCallback) (success, message, error) -> {
                    if (!success) {
                        failure.set(message + " " + error);
                    }
                    done.countDown();
                })
                .notifying(this::handle)
                .build();
        Thread thread = new Thread(engine, "engine");
        thread.start();
        if (wanted < 0) {
            Thread watcher = new Thread(this::waitForInputToEnd, "input");
            watcher.setDaemon(true);
            watcher.start();
        }
        done.await();
        if (failure.get() != null) {
            System.err.println(failure.get());
            System.exit(1);
        }
        synchronized (this) {
            if (wanted >= 0) {
                out.println(events + " " + middleEvents + " " + firstMicros + " " + middleMicros + " " + lastMicros);
            }
            out.flush();
        }
        engine.close();
        System.exit(0);
    }

    private synchronized void handle(
            List<RecordChangeEvent<SourceRecord>> batch,
            DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
            throws InterruptedException {
        long now = micros();
        if (firstMicros == 0) {
            firstMicros = now;
        }
        for (RecordChangeEvent<SourceRecord> event : batch) {
            if (wanted < 0) {
                out.println(event.record().headers().lastWithName("id").value() + " " + now);
            }
            committer.markProcessed(event);
        }
        if (wanted < 0) {
            out.flush();
        }
        events += batch.size();
        lastMicros = micros();
        if (middleMicros == 0 && events >= wanted / 2) {
            middleMicros = lastMicros;
            middleEvents = events;
        }
        committer.markBatchFinished();
        if (wanted >= 0 && events >= wanted) {
            done.countDown();
        }
    }

    private void waitForInputToEnd() {
        try {
            while (System.in.read() >= 0) {
                // whatever is written to us means nothing
            }
        } catch (IOException error) {
            // ended too
        }
        done.countDown();
    }

    private static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
