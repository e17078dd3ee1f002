import java.util.Iterator;

import mirrorlake.ConditionalLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Prints what the log store lists from a path on, as Delta asks for it. */
public class LogStoreListing {
    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        for (int i = 2; i < args.length; i++) {
            int at = args[i].indexOf('=');
            conf.set(args[i].substring(0, at), args[i].substring(at + 1));
        }
        ConditionalLogStore store = new ConditionalLogStore(conf);
        // VACUUM asks for all of a folder by a name before all others.
        String name = args[1].equals("all") ? "\u0000" : args[1];
        Iterator found = store.listFrom(new Path(args[0], name), conf);
        while (found.hasNext()) {
            FileStatus one = (FileStatus) found.next();
            System.out.println(one.getPath().getName() + (one.isDirectory() ? "/" : ""));
        }
    }
}
