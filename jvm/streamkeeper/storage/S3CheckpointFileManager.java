package streamkeeper.storage;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** Spark's checkpoints on S3: of several queries that write one file, exactly one is told that it did. */
public final class S3CheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  public S3CheckpointFileManager(Path path, Configuration conf) {
    super(path, conf);
  }

  /** Begins a file that appears, whole, when it is closed: in place of another, or on condition that there is none. */
  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    try {
      if (overwriteIfPossible) {
        FSDataOutputStream out = ConditionalStream.abortable(fs().create(path, true), path);
        return new Cancellable(out, out::abort);
      }
      ConditionalStream out = new ConditionalStream(fs(), path);
      return new Cancellable(out, out::abort);
    } catch (IOException error) {
      // Spark's method, being Scala's, declares no exception, and its callers expect the file system's own.
      throw S3CheckpointFileManager.<RuntimeException>asItIs(error);
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Exception> E asItIs(IOException error) throws E {
    throw (E) error;
  }

  private static final class Cancellable extends CancellableFSDataOutputStream {
    private final Runnable abort;
    private boolean cancelled;

    Cancellable(java.io.OutputStream out, Runnable abort) {
      super(out);
      this.abort = abort;
    }

    @Override
    public void cancel() {
      cancelled = true;
      abort.run();
    }

    @Override
    public void close() throws IOException {
      if (!cancelled) {
        super.close();
      }
    }
  }
}
