import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

import mirrorlake.ConditionalLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Asks the log store as Delta does: `race TABLE VERSIONS` or `list FOLDER FROM`, then settings. */
public class LogStoreProgram {
    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        for (int i = 3; i < args.length; i++) {
            int at = args[i].indexOf('=');
            conf.set(args[i].substring(0, at), args[i].substring(at + 1));
        }
        ConditionalLogStore store = new ConditionalLogStore(conf);
        if (args[0].equals("race")) {
            race(store, conf, args[1], Integer.parseInt(args[2]));
        } else {
            list(store, conf, args[1], args[2]);
        }
    }

    /** Commits versions one after the other, as one of several drivers; prints those that it got. */
    static void race(ConditionalLogStore store, Configuration conf, String table, int versions)
            throws Exception {
        for (int version = 0; version < versions; version++) {
            List lines = new ArrayList();
            lines.add("{}");
            String name = "00000000000000000000" + version;
            name = name.substring(name.length() - 20);
            try {
                store.write(new Path(table + "/_delta_log/" + name + ".json"),
                    lines.iterator(), Boolean.FALSE, conf);
                System.out.println(version);
            } catch (FileAlreadyExistsException lost) {
                continue;
            }
        }
    }

    /** Prints what is listed from a name on. */
    static void list(ConditionalLogStore store, Configuration conf, String folder, String from)
            throws Exception {
        // VACUUM asks for all of a folder by a name before all others.
        String name = from.equals("all") ? "\u0000" : from;
        Iterator found = store.listFrom(new Path(folder, name), conf);
        while (found.hasNext()) {
            FileStatus one = (FileStatus) found.next();
            System.out.println(one.getPath().getName() + (one.isDirectory() ? "/" : ""));
        }
    }
}
