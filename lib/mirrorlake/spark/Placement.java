package mirrorlake;

import java.io.Serializable;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/**
 * The rule that places the values of a column in tasks, as a partition transform of Spark.
 */
public class Placement implements BoundFunction, Serializable {
    private final String rule;

    public Placement(String rule) {
        this.rule = rule;
    }

    public DataType[] inputTypes() {
        return new DataType[] {DataTypes.StringType};
    }

    public DataType resultType() {
        return DataTypes.IntegerType;
    }

    public String name() {
        return rule;
    }

    public String canonicalName() {
        return rule;
    }

    /**
     * Sends nothing to executors: they do not need this class and do not have it.
     *
     * Not private, because Spark's compiler makes private methods static.
     */
    protected Object writeReplace() {
        return null;
    }
}
