package mirrorlake;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;

import io.delta.storage.S3SingleDriverLogStore;
import io.delta.storage.internal.S3LogStoreUtil;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;

/**
 * Commits for any number of drivers: who creates a version's file has committed it.
 *
 * The file is written by a conditional request, with an id of its own in its metadata. After a
 * refusal or a lost answer the id says whose file is there.
 *
 * A log is listed from the version that is asked for on. Delta's own switch for that,
 * delta.enableFastS3AListFrom, lists a folder with all folders in it, and VACUUM lists a table that
 * way, too: it takes the log for files that no version has, and deletes it. So it is off here.
 *
 * Written for Janino: raw types, no newer syntax.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String MARK = "mirrorlakewrite";
    private static final int TRIES = 5;
    private static final String LOG = "_delta_log";
    private static final String ALL_FOLDERS = "delta.enableFastS3AListFrom";

    public ConditionalLogStore(Configuration conf) {
        super(withoutFolders(conf));
    }

    private static Configuration withoutFolders(Configuration conf) {
        Configuration own = new Configuration(conf);
        own.setBoolean(ALL_FOLDERS, false);
        return own;
    }

    public Iterator listFrom(Path path, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        Path start = files.makeQualified(path);
        Path folder = start.getParent();
        boolean isVersion = Character.isDigit(path.getName().charAt(0));
        if (!isVersion || !LOG.equals(folder.getName()) || !(files instanceof S3AFileSystem)) {
            return super.listFrom(path, conf);
        }
        FileStatus[] found = S3LogStoreUtil.s3ListFromArray(files, start, folder);
        List kept = new ArrayList();
        for (int i = 0; i < found.length; i++) {
            Path one = found[i].getPath();
            boolean isInLog = folder.toUri().getPath().equals(one.getParent().toUri().getPath());
            if (isInLog && one.getName().compareTo(start.getName()) >= 0) {
                kept.add(found[i]);
            }
        }
        if (kept.isEmpty() && !files.exists(folder)) {
            throw new FileNotFoundException("No such file or directory: " + folder);
        }
        Collections.sort(kept);
        return kept.iterator();
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
