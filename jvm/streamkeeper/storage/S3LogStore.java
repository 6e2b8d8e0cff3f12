package streamkeeper.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Delta's log on S3: of several drivers that write one version, exactly one is told that it did. */
public final class S3LogStore extends HadoopFileSystemLogStore {
  public S3LogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    if (overwrite) {
      FSDataOutputStream out = ConditionalStream.abortable(fs.create(path, true), path);
      writeLines(out, actions, out::abort);
      return;
    }
    try {
      ConditionalStream out = new ConditionalStream(fs, path);
      writeLines(out, actions, out::abort);
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException refused) {
      FileAlreadyExistsException there = new FileAlreadyExistsException(path.toString());
      there.initCause(refused);
      throw there;
    }
  }

  /** Says that no reader sees half an object: it appears when it is whole. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }

  private static void writeLines(OutputStream out, Iterator<String> lines, Runnable abort) throws IOException {
    boolean whole = false;
    try {
      while (lines.hasNext()) {
        out.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
      whole = true;
    } finally {
      if (!whole) {
        abort.run();
      }
    }
    out.close();
  }
}
