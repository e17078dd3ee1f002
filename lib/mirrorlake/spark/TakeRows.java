package mirrorlake;

import org.apache.spark.sql.execution.SparkPlan;

/**
 * Computes the first rows of a plan, and leaves them in the JVM. As a function, it can be passed to
 * Spark, which runs it with the session's settings in the tasks.
 */
public final class TakeRows extends scala.runtime.AbstractFunction0 {
    private final SparkPlan plan;
    private final int most;

    /**
     * @param plan the plan
     * @param most the greatest number of rows; each task stops after as many
     */
    public TakeRows(SparkPlan plan, int most) {
        this.plan = plan;
        this.most = most;
    }

    public Object apply() {
        return plan.executeTake(most);
    }
}
