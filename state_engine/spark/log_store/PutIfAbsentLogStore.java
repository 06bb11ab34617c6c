package statelake.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Writes entries of Delta logs on S3A by put-if-absent, so that of many writers exactly one creates an entry.
 *
 * <p>An answer may leave it open whether an entry was written: a connection is lost, a repeated request meets what the
 * first one wrote, the store reports a conflict. Then the entry is read back. Every entry names the transaction that
 * wrote it, so one with the same bytes is this writer's. Where there is none yet, a request may still be on its way: the
 * same put-if-absent again decides, for only one of the two can create the entry.
 */
public final class PutIfAbsentLogStore extends HadoopFileSystemLogStore {

    private static final String PUT_IF_ABSENT = "fs.option.create.conditional.overwrite";
    private static final int ATTEMPTS = 5;
    private static final long FIRST_PAUSE_MS = 200;

    /** Made by Delta, with the configuration at that time. */
    public PutIfAbsentLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        byte[] entry = joined(actions);
        if (overwrite) {
            put(entry, files.create(path, true));
            return;
        }
        IOException open = attempt(files, path, entry);
        for (int attempt = 1; open != null; attempt++) {
            if (attempt == ATTEMPTS) {
                throw open;
            }
            pause(FIRST_PAUSE_MS << (attempt - 1), open);
            open = attempt(files, path, entry);
        }
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }

    /** Null where the entry is there and ours; else why that is still open. */
    private static IOException attempt(FileSystem files, Path path, byte[] entry) throws IOException {
        IOException open = created(files, path, entry);
        if (open == null) {
            return null;
        }
        byte[] there = content(files, path, open);
        if (there == null) {
            return open;
        }
        if (!Arrays.equals(entry, there)) {
            FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
            taken.initCause(open);
            throw taken;
        }
        return null;
    }

    /** Null where the store says that it created the entry; else what it said instead. */
    private static IOException created(FileSystem files, Path path, byte[] entry) throws IOException {
        try {
            create(files, path, entry);
            return null;
        } catch (AccessDeniedException refused) {
            throw refused;
        } catch (IOException error) {
            return error;
        }
    }

    private static void create(FileSystem files, Path path, byte[] entry) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(false);
        builder.recursive();
        builder.must(PUT_IF_ABSENT, true);
        put(entry, (FSDataOutputStream) builder.build());
    }

    /** Closing a stream is what creates the object: one that did not take all bytes is given up instead. */
    private static void put(byte[] entry, FSDataOutputStream out) throws IOException {
        boolean whole = false;
        try {
            out.write(entry);
            whole = true;
        } finally {
            if (!whole) {
                out.abort();
            }
        }
        out.close();
    }

    private static byte[] joined(Iterator<String> actions) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            String action = (String) actions.next(); // the compiler takes it for any object
            bytes.write(action.getBytes(StandardCharsets.UTF_8));
            bytes.write('\n');
        }
        return bytes.toByteArray();
    }

    /** Null where there is no entry, or it cannot be read, which is noted beside the error before. */
    private static byte[] content(FileSystem files, Path path, IOException before) {
        try {
            return content(files, path);
        } catch (FileNotFoundException notYet) {
            return null;
        } catch (IOException unreadable) {
            before.addSuppressed(unreadable);
            return null;
        }
    }

    private static byte[] content(FileSystem files, Path path) throws IOException {
        InputStream in = files.open(path);
        try {
            return in.readAllBytes();
        } finally {
            in.close();
        }
    }

    private static void pause(long milliseconds, IOException open) throws IOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            InterruptedIOException error = new InterruptedIOException(interrupted.getMessage());
            error.initCause(open);
            throw error;
        }
    }
}
