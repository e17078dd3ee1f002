package mirrorlake;

import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import scala.collection.immutable.Seq;

/**
 * The files of a scan, as objects.
 *
 * While Spark plans a query, Delta twice converts the files to rows and back, in order to filter them
 * by partition. It does so even without such a filter, which takes as long as a small query.
 */
public class KnownFiles extends TahoeBatchFileIndex {
    public KnownFiles(TahoeBatchFileIndex read) {
        super(
            read.spark(),
            read.actionType(),
            read.addFiles(),
            read.deltaLog(),
            read.path(),
            read.snapshot(),
            read.partitionFiltersGenerated());
    }

    public Seq matchingFiles(Seq partitionFilters, Seq dataFilters) {
        for (int index = 0; index < partitionFilters.length(); index++) {
            if (!Literal.TrueLiteral().equals(partitionFilters.apply(index))) {
                return super.matchingFiles(partitionFilters, dataFilters);
            }
        }
        return addFiles();
    }
}
