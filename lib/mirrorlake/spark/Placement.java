package mirrorlake;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.physical.ClusteredDistribution;
import org.apache.spark.sql.catalyst.plans.physical.Distribution;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.ShufflePartitionIdPassThrough;
import org.apache.spark.sql.catalyst.plans.physical.ShuffleSpec;
import org.apache.spark.sql.catalyst.plans.physical.ShuffleSpecCollection;
import scala.Function1;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

/**
 * The partitioning of rows that a rule places in tasks by the value of a key.
 *
 * Spark joins storage partitions only of sources of its own interface, and Delta's is another.
 * This partitioning matches that of other rows with the same rule. It can also shuffle the other
 * side of a join, because the rule consists of Spark's own expressions.
 */
public class Placement extends ShufflePartitionIdPassThrough {
    final ShufflePartitionIdPassThrough rule;
    final Expression column;
    final Expression key;

    /** Places by `key` as `rule` does by `column`. */
    public Placement(ShufflePartitionIdPassThrough rule, Expression column, Expression key) {
        super(replaced(rule, column, key).expr(), rule.numPartitions());
        this.rule = rule;
        this.column = column;
        this.key = key;
    }

    static ShufflePartitionIdPassThrough replaced(
        ShufflePartitionIdPassThrough rule, final Expression column, final Expression key
    ) {
        return (ShufflePartitionIdPassThrough) rule.transformUp(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                return column.semanticEquals((Expression) node);
            }

            public Object applyOrElse(Object node, Function1 otherwise) {
                return isDefinedAt(node) ? key : otherwise.apply(node);
            }
        });
    }

    Placement by(Object key) {
        return new Placement(rule, column, (Expression) key);
    }

    public Seq children() {
        return (Seq) Nil$.MODULE$.$colon$colon(key);
    }

    public ShufflePartitionIdPassThrough withNewChildrenInternal(IndexedSeq children) {
        return by(children.head());
    }

    public boolean satisfies0(Distribution required) {
        if (!(required instanceof ClusteredDistribution)) {
            return super.satisfies0(required);
        }
        ClusteredDistribution clustered = (ClusteredDistribution) required;
        return clustered.requireAllClusterKeys()
            ? clustered.areAllClusterKeysMatched(children())
            : place(clustered.clustering(), 0) >= 0;
    }

    /** Returns the index of the key among expressions, starting at one of them, or -1. */
    int place(Seq expressions, int start) {
        for (int index = start; index < expressions.length(); index++) {
            if (key.semanticEquals((Expression) expressions.apply(index))) {
                return index;
            }
        }
        return -1;
    }

    public ShuffleSpec createShuffleSpec(ClusteredDistribution required) {
        return new Spec(this, required.clustering());
    }

    /** Compares the partitionings of both sides of a join on `keys`, or creates the other one. */
    public static class Spec implements ShuffleSpec {
        final Placement placement;
        final Seq keys;

        Spec(Placement placement, Seq keys) {
            this.placement = placement;
            this.keys = keys;
        }

        public int numPartitions() {
            return placement.numPartitions();
        }

        public boolean isCompatibleWith(ShuffleSpec other) {
            if (other instanceof ShuffleSpecCollection) {
                Iterator specs = ((ShuffleSpecCollection) other).specs().iterator();
                while (specs.hasNext()) {
                    if (isCompatibleWith((ShuffleSpec) specs.next())) {
                        return true;
                    }
                }
            }
            if (!(other instanceof Spec)) {
                return false;
            }
            Spec spec = (Spec) other;
            int index = placement.place(keys, 0);
            while (index >= 0) {
                if (placement.by(spec.keys.apply(index)).semanticEquals(spec.placement)) {
                    return true;
                }
                index = placement.place(keys, index + 1);
            }
            return false;
        }

        public boolean canCreatePartitioning() {
            return true;
        }

        public Partitioning createPartitioning(Seq otherKeys) {
            return placement.by(otherKeys.apply(placement.place(keys, 0)));
        }
    }

    /**
     * Sends Spark's own class to executors, which do not have this one.
     *
     * Not private, because Spark's compiler makes private methods static.
     */
    protected Object writeReplace() {
        return new ShufflePartitionIdPassThrough(expr(), numPartitions());
    }
}
