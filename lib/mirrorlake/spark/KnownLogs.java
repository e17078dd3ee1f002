package mirrorlake;

import com.google.common.cache.Cache;
import com.google.common.cache.ForwardingCache;
import java.lang.reflect.Field;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.spark.sql.delta.CapturedSnapshot;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaLog$;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;

/**
 * A replacement for Delta's cache of logs, whose snapshots read their figures from the checksum.
 *
 * Every commit to a table with row ids needs the highest id, a transaction of an application its
 * last number, and a statement the number of files and their size. The checksum has all of them.
 * Delta computes them in a Spark job over all files, which is still done without a checksum.
 */
public class KnownLogs extends ForwardingCache {
    private final Cache cache;

    public KnownLogs(Cache cache) {
        this.cache = cache;
    }

    protected Cache delegate() {
        return cache;
    }

    public Object get(Object key, final Callable make) throws ExecutionException {
        return cache.get(key, new Callable() {
            public Object call() throws Exception {
                Object made = make.call();
                return made.getClass().equals(DeltaLog.class) ? new KnownLog((DeltaLog) made) : made;
            }
        });
    }

    /** Replaces Delta's cache with this one. Delta reads logs again that it had cached. */
    public void install() throws Exception {
        Field field = DeltaLog$.class.getDeclaredField("deltaLogCache");
        field.setAccessible(true);
        field.set(null, new Some(this));
        invalidateAll();
    }

    /** A log that returns such snapshots. */
    public static class KnownLog extends DeltaLog {
        public KnownLog(DeltaLog read) {
            super(
                read.logPath(),
                read.dataPath(),
                read.options(),
                read.allOptions(),
                read.clock(),
                Option.empty());
            CapturedSnapshot captured = read.getCapturedSnapshot();
            if (captured.snapshot().getClass().equals(Snapshot.class)) {
                currentSnapshot_$eq(
                    new CapturedSnapshot(known(captured.snapshot()), captured.updateTimestamp()));
                lastSeenChecksumFileStatusOpt_$eq(read.lastSeenChecksumFileStatusOpt());
            } else { // the table does not exist yet, and the snapshot belongs to the original log
                super.createSnapshotAtInit(Option.empty());
            }
        }

        /** Does nothing during construction, because the snapshot has been read. */
        public void createSnapshotAtInit(Option table) {}

        /** Wraps each snapshot that is read later, whoever committed it. */
        public Snapshot installSnapshot(Snapshot read, long at) {
            return super.installSnapshot(known(read), at);
        }

        private Snapshot known(Snapshot read) {
            boolean isPlain = read.getClass().equals(Snapshot.class);
            return isPlain ? new KnownSnapshot(read, this) : read;
        }
    }

    /** A snapshot of a table. */
    public static class KnownSnapshot extends Snapshot {
        public KnownSnapshot(Snapshot read, DeltaLog log) {
            super(read.path(), read.version(), read.logSegment(), log, read.checksumOpt());
        }

        public Seq domainMetadata() {
            VersionChecksum checksum = checksum();
            Option known = checksum == null ? Option.empty() : checksum.domainMetadata();
            return known.isDefined() ? (Seq) known.get() : super.domainMetadata();
        }

        public Seq setTransactions() {
            VersionChecksum checksum = checksum();
            Option known = checksum == null ? Option.empty() : checksum.setTransactions();
            return known.isDefined() ? (Seq) known.get() : super.setTransactions();
        }

        public long sizeInBytes() {
            VersionChecksum checksum = checksum();
            return checksum == null ? super.sizeInBytes() : checksum.tableSizeBytes();
        }

        public long numOfFiles() {
            VersionChecksum checksum = checksum();
            return checksum == null ? super.numOfFiles() : checksum.numFiles();
        }

        private VersionChecksum checksum() {
            return checksumOpt().isDefined() ? (VersionChecksum) checksumOpt().get() : null;
        }
    }
}
