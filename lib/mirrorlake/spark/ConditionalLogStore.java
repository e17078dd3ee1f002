package mirrorlake;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;

import io.delta.storage.S3SingleDriverLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits for any number of drivers: who creates a version's file has committed it.
 *
 * The file is written by a conditional request, with an id of its own in its metadata. After a
 * refusal or a lost answer the id says whose file is there. Written for Janino: raw types, no
 * newer syntax.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String MARK = "mirrorlakewrite";
    private static final int TRIES = 5;

    public ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf)
            throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, conf);
            return;
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append('\n');
        }
        byte[] content = text.toString().getBytes(StandardCharsets.UTF_8);
        FileSystem files = path.getFileSystem(conf);
        String own = UUID.randomUUID().toString();
        for (int attempt = 1;; attempt++) {
            try {
                create(files, path, own, content);
                return;
            } catch (IOException error) {
                String found = mark(files, path);
                if (own.equals(found)) {
                    return;
                }
                if (found != null) {
                    throw new FileAlreadyExistsException(path.toString());
                }
                if (attempt == TRIES) {
                    throw error;
                }
            }
        }
    }

    private static void create(FileSystem files, Path path, String own, byte[] content)
            throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.must("fs.option.create.conditional.overwrite", true);
        builder.opt("fs.s3a.create.header." + MARK, own);
        FSDataOutputStream out = (FSDataOutputStream) builder.build();
        out.write(content);
        out.close();
    }

    /** The id that a file was written with, "" if it has none; null if there is no file. */
    private static String mark(FileSystem files, Path path) throws IOException {
        try {
            byte[] found = (byte[]) files.getXAttrs(path).get("header." + MARK);
            return found == null ? "" : new String(found, StandardCharsets.UTF_8);
        } catch (FileNotFoundException error) {
            return null;
        }
    }
}
