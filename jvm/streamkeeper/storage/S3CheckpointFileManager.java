package streamkeeper.storage;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Spark's checkpoints on S3: of several queries that write one file, exactly one is told that it did.
 *
 * <p>Spark asks one class for all folders of an application, also for a copy of a checkpoint on a local disk and for the
 * log of a sink of files elsewhere. Those are written as Spark writes them.
 */
public final class S3CheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  private static final String CLASS = "spark.sql.streaming.checkpointFileManagerClass";

  private final CheckpointFileManager elsewhere;

  public S3CheckpointFileManager(Path path, Configuration conf) {
    super(path, conf);
    elsewhere = fs().getScheme().startsWith("s3") ? null : ofSpark(path, conf);
  }

  private static CheckpointFileManager ofSpark(Path path, Configuration conf) {
    Configuration plain = new Configuration(conf);
    plain.unset(CLASS);
    return CheckpointFileManager.create(path, plain);
  }

  /** Begins a file that appears, whole, when it is closed: in place of another, or on condition that there is none. */
  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (elsewhere != null) {
      return elsewhere.createAtomic(path, overwriteIfPossible);
    }
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
