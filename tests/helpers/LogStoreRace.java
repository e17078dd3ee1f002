import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.List;

import mirrorlake.ConditionalLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Commits versions one after the other, as one of several drivers; prints those that it got. */
public class LogStoreRace {
    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        for (int i = 2; i < args.length; i++) {
            int at = args[i].indexOf('=');
            conf.set(args[i].substring(0, at), args[i].substring(at + 1));
        }
        ConditionalLogStore store = new ConditionalLogStore(conf);
        for (int version = 0; version < Integer.parseInt(args[1]); version++) {
            List lines = new ArrayList();
            lines.add("{}");
            String name = "00000000000000000000" + version;
            name = name.substring(name.length() - 20);
            try {
                store.write(new Path(args[0] + "/_delta_log/" + name + ".json"),
                    lines.iterator(), Boolean.FALSE, conf);
                System.out.println(version);
            } catch (FileAlreadyExistsException lost) {
                continue;
            }
        }
    }
}
