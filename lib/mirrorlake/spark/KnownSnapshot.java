package mirrorlake;

import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A version of a table that takes from its checksum what Delta reads the whole state for.
 *
 * Every commit to a table with row ids asks for the highest id, and every transaction of an
 * application for its last number: two values that the checksum has, and the state gives after a
 * Spark job over all files. Where the checksum lacks them, Delta's own way is used.
 */
public class KnownSnapshot extends Snapshot {
    public KnownSnapshot(Snapshot read) {
        super(
            read.path(), read.version(), read.logSegment(), read.deltaLog(), read.checksumOpt());
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

    private VersionChecksum checksum() {
        return checksumOpt().isDefined() ? (VersionChecksum) checksumOpt().get() : null;
    }
}
