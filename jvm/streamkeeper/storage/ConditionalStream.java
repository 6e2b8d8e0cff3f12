package streamkeeper.storage;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;

/**
 * A new object on S3, written on condition that there is none of its name. It appears, whole, when the stream is closed.
 *
 * <p>Each stream sends a random mark in the object's metadata. Where {@code close} is refused or gets no answer, the mark
 * of the object that is there says whether it is this stream's own: the client repeats a request whose answer was lost.
 */
public final class ConditionalStream extends OutputStream {
  /** Option of Hadoop's file systems for a conditional write; one that does not know it fails on {@code must}. */
  static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  private static final String MARK = "streamkeeper-create";

  private final FileSystem fs;
  private final Path path;
  private final String mark = UUID.randomUUID().toString();
  private final FSDataOutputStream out;
  private boolean over;

  /** Begins the object; nothing is visible yet. */
  public ConditionalStream(FileSystem fs, Path path) throws IOException {
    this.fs = fs;
    this.path = path;
    this.out =
        abortable(
            (FSDataOutputStream)
                fs.createFile(path)
                    .recursive()
                    .must(CONDITIONAL, true)
                    .must("fs.s3a.create.header." + MARK, mark)
                    .build(),
            path);
  }

  /** Returns the stream if what was written to it can be thrown away, else throws. */
  static FSDataOutputStream abortable(FSDataOutputStream out, Path path) throws IOException {
    if (!out.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) {
      throw new IOException(
          "The file system of " + path + " cannot throw a half-written file away. Use s3a on a store with conditional"
              + " writes.");
    }
    return out;
  }

  @Override
  public void write(int value) throws IOException {
    out.write(value);
  }

  @Override
  public void write(byte[] bytes, int from, int length) throws IOException {
    out.write(bytes, from, length);
  }

  @Override
  public void flush() throws IOException {
    out.flush();
  }

  /** Throws away what was written. */
  public void abort() {
    if (!over) {
      over = true;
      out.abort();
    }
  }

  /**
   * Makes the object visible.
   *
   * @throws FileAlreadyExistsException there is an object of another writer
   */
  @Override
  public void close() throws IOException {
    if (over) {
      return;
    }
    over = true;
    try {
      out.close();
    } catch (IOException error) {
      byte[] there = markOfWhatIsThere(error);
      if (there == null || !mark.equals(new String(there, StandardCharsets.UTF_8))) {
        FileAlreadyExistsException refused = new FileAlreadyExistsException(path + " was written by another writer.");
        refused.initCause(error);
        throw refused;
      }
    }
  }

  /** Returns the mark of the object of this name; null if it has none. Throws the error if there is no object. */
  private byte[] markOfWhatIsThere(IOException error) throws IOException {
    try {
      return fs.getXAttrs(path).get("header." + MARK);
    } catch (IOException | RuntimeException second) {
      error.addSuppressed(second);
      throw error;
    }
  }

  /**
   * Writes one name twice, on condition that it is not there; the store must refuse the second.
   *
   * @throws IOException it did not, or the store cannot be written
   */
  public static void prove(String folder, Configuration conf) throws IOException {
    Path probe = new Path(folder, ".streamkeeper-probe-" + UUID.randomUUID());
    FileSystem fs = probe.getFileSystem(conf);
    try {
      put(fs, probe);
      try {
        put(fs, probe);
      } catch (FileAlreadyExistsException refused) {
        return;
      }
    } finally {
      fs.delete(probe, false);
    }
    throw new IOException(
        "The store of " + folder + " took a second conditional PUT of one object, so two drivers could both commit one"
            + " version of a table. Use a store that refuses it (If-None-Match: *), such as Amazon S3.");
  }

  private static void put(FileSystem fs, Path path) throws IOException {
    try (ConditionalStream stream = new ConditionalStream(fs, path)) {
      stream.write(1);
    }
  }
}
