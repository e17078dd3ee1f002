package mirrorlake;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
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
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * A log store for S3 that is safe for several drivers: creating the file of a version commits it.
 *
 * The file is written by a conditional request, with a unique id in its metadata. After a refused
 * request or a lost response, the id shows which driver wrote the file.
 *
 * A log is listed from the requested version on, and only as far as the listing is read. Delta's own
 * setting for this, delta.enableFastS3AListFrom, lists a folder with all its subfolders. VACUUM also
 * lists a table in this way, so it would take the log for unreferenced files and delete it. Therefore
 * the setting is switched off here.
 *
 * Written for Janino: raw types, no newer syntax.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String MARK = "mirrorlakewrite";
    private static final int TRIES = 5;
    private static final String PAGE = "fs.s3a.paging.maximum";
    private static final int KEYS = 1000;
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
        boolean isVersion = Character.isDigit(path.getName().charAt(0))
                && LOG.equals(start.getParent().getName());
        if (isVersion && files instanceof S3AFileSystem) {
            return new Log((S3AFileSystem) files, start);
        }
        return super.listFrom(path, conf);
    }

    /**
     * The files of a log in order, fetched page by page. Delta searches for expired versions from
     * the first one on, and stops at the first that has not expired.
     */
    private static class Log implements Iterator {
        private final RemoteIterator found;

        Log(S3AFileSystem store, Path start) throws IOException {
            Path folder = start.getParent();
            ListObjectsV2Request.Builder asked = ListObjectsV2Request.builder();
            asked.bucket(store.getBucket());
            asked.prefix(store.pathToKey(folder) + "/");
            asked.startAfter(before(store.pathToKey(start)));
            asked.maxKeys(new Integer(store.getConf().getInt(PAGE, KEYS)));
            this.found = store.getListing().createFileStatusListingIterator(
                    folder, S3ListRequest.v2((ListObjectsV2Request) asked.build()),
                    new From(start), new Listing.AcceptAllButSelfAndS3nDirs(folder),
                    store.getActiveAuditSpan());
            if (!this.found.hasNext() && !store.exists(folder)) {
                throw new FileNotFoundException("No such file or directory: " + folder);
            }
        }

        public boolean hasNext() {
            try {
                return this.found.hasNext();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        public Object next() {
            try {
                return this.found.next();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }
    }

    /** The files directly in a folder, starting with a given one. */
    private static class From implements PathFilter {
        private final String folder;
        private final String name;

        From(Path start) {
            this.folder = start.getParent().toUri().getPath();
            this.name = start.getName();
        }

        public boolean accept(Path path) {
            return this.folder.equals(path.getParent().toUri().getPath())
                    && path.getName().compareTo(this.name) >= 0;
        }
    }

    /** A key just before this one, because a listing starts after the given key. */
    private static String before(String key) {
        int last = key.length() - 1;
        return key.substring(0, last) + (char) (key.charAt(last) - 1);
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

    /** Returns the id that a file was written with; "" if it has none, null without a file. */
    private static String mark(FileSystem files, Path path) throws IOException {
        try {
            byte[] found = (byte[]) files.getXAttrs(path).get("header." + MARK);
            return found == null ? "" : new String(found, StandardCharsets.UTF_8);
        } catch (FileNotFoundException error) {
            return null;
        }
    }
}
