package mirrorlake;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.SparkPlan;

/**
 * Computes the rows of a plan, and leaves them in the JVM. As a function, it can be passed to Spark,
 * which runs it with the session's settings in the tasks.
 */
public final class TakeRows extends scala.runtime.AbstractFunction0 {
    private final SparkPlan plan;
    private final int most;
    private final long bytes;

    public TakeRows(SparkPlan plan, int most, long bytes) {
        this.plan = plan;
        this.most = most;
        this.bytes = bytes;
    }

    /** Returns the rows; null if they are more, or have more bytes. Each task stops early. */
    public Object apply() {
        InternalRow[] rows = plan.executeTake(most + 1);
        long size = 0;
        for (int place = 0; place < rows.length; place++) {
            size += ((UnsafeRow) rows[place]).getSizeInBytes();
        }
        return rows.length > most || size > bytes ? null : rows;
    }
}
