import io.delta.storage.LogStore;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import streamkeeper.storage.ConditionalStream;
import streamkeeper.storage.S3CheckpointFileManager;
import streamkeeper.storage.S3LogStore;

/**
 * Lets two writers, each with a client of its own, write one file at the same moment, often.
 *
 * <p>Arguments: endpoint, folder, kind (log, checkpoint, prove, abort, elsewhere), rounds. Every second round both write the same
 * bytes. Prints how many rounds had no, one and two winners, and in how many another's bytes are there.
 */
public final class Races {
  private static Configuration conf(String endpoint) {
    Configuration conf = new Configuration();
    conf.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem");
    conf.set("fs.s3a.impl.disable.cache", "true");
    conf.set("fs.s3a.endpoint", endpoint);
    conf.set("fs.s3a.endpoint.region", "us-east-1");
    conf.set("fs.s3a.path.style.access", "true");
    conf.set("fs.s3a.access.key", "test");
    conf.set("fs.s3a.secret.key", "testtest");
    conf.set("fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider");
    return conf;
  }

  private interface Writer {
    /** Returns whether this writer was told that it wrote the file. */
    boolean write(Path path, String content) throws Exception;
  }

  private static boolean log(S3LogStore store, Configuration conf, Path path, String content) throws Exception {
    try {
      store.write(path, List.of(content).iterator(), false, conf);
      return true;
    } catch (java.nio.file.FileAlreadyExistsException refused) {
      return false;
    }
  }

  private static boolean checkpoint(CheckpointFileManager manager, Path path, String content) throws Exception {
    CheckpointFileManager.CancellableFSDataOutputStream out = null;
    try {
      out = manager.createAtomic(path, false);
      out.write((content + "\n").getBytes(StandardCharsets.UTF_8));
      out.close();
      return true;
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException refused) {
      if (out != null) {
        out.cancel();
      }
      return false;
    }
  }

  public static void main(String[] arguments) throws Exception {
    String endpoint = arguments[0];
    String folder = arguments[1];
    String kind = arguments[2];
    int rounds = Integer.parseInt(arguments[3]);
    Configuration conf = conf(endpoint);
    if (kind.equals("prove")) {
      ConditionalStream.prove(folder, conf);
      System.out.println("proven");
      return;
    }
    FileSystem reader = new Path(folder).getFileSystem(conf);
    if (kind.equals("abort")) {
      abort(conf, reader, folder);
      return;
    }
    if (kind.equals("elsewhere")) {
      elsewhere(conf, reader, new Path(folder, "offset"));
      return;
    }
    CyclicBarrier barrier = new CyclicBarrier(2);
    ExecutorService threads = Executors.newFixedThreadPool(2);
    List<Writer> writers = new ArrayList<>();
    for (int me = 0; me < 2; me++) {
      Configuration own = new Configuration(conf);
      if (kind.equals("log")) {
        // One client for each writer, and not for each write: the cache knows users apart, and schemes.
        String scheme = me == 0 ? "s3a" : "s3";
        own.set("fs." + scheme + ".impl.disable.cache", "false");
        S3LogStore store = new S3LogStore(own);
        writers.add(
            (path, content) ->
                log(store, own, new Path(path.toString().replace("s3a://", scheme + "://")), content));
      } else {
        CheckpointFileManager manager = new S3CheckpointFileManager(new Path(folder), own);
        writers.add((path, content) -> checkpoint(manager, path, content));
      }
    }
    int[] won = new int[3];
    int wrong = 0;
    for (int round = 0; round < rounds; round++) {
      Path path = new Path(folder, String.format("%020d.json", round));
      boolean alike = round % 2 == 1;
      List<Future<Boolean>> told = new ArrayList<>();
      for (int me = 0; me < 2; me++) {
        Writer writer = writers.get(me);
        String content = alike ? "same" : "writer " + me;
        Callable<Boolean> work =
            () -> {
              barrier.await();
              return writer.write(path, content);
            };
        told.add(threads.submit(work));
      }
      boolean first = told.get(0).get();
      boolean second = told.get(1).get();
      won[(first ? 1 : 0) + (second ? 1 : 0)]++;
      String there;
      try (FSDataInputStream in = reader.open(path)) {
        there = new String(in.readAllBytes(), StandardCharsets.UTF_8);
      }
      if (!there.equals((alike ? "same" : first ? "writer 0" : "writer 1") + "\n")) {
        wrong++;
      }
    }
    threads.shutdown();
    System.out.println("none " + won[0] + " one " + won[1] + " both " + won[2] + " wrong " + wrong);
  }

  /** Writes a file twice where Spark's own manager writes, which an application has set ours for. */
  private static void elsewhere(Configuration conf, FileSystem reader, Path path) throws Exception {
    conf.set("spark.sql.streaming.checkpointFileManagerClass", S3CheckpointFileManager.class.getName());
    CheckpointFileManager manager = CheckpointFileManager.create(path.getParent(), conf);
    manager.mkdirs(path.getParent());
    System.out.println("written " + checkpoint(manager, path, "first") + ", again " + checkpoint(manager, path, "second"));
    try (FSDataInputStream in = reader.open(path)) {
      System.out.print("there " + new String(in.readAllBytes(), StandardCharsets.UTF_8));
    }
  }

  /** Begins files that are thrown away: by a source of lines that fails, and by a query that is cancelled. */
  private static void abort(Configuration conf, FileSystem reader, String folder) throws Exception {
    Path commit = new Path(folder, "commit");
    java.util.Iterator<String> failing =
        new java.util.Iterator<>() {
          private int lines = 0;

          public boolean hasNext() {
            return true;
          }

          public String next() {
            if (lines++ % 4 == 3) {
              throw new IllegalStateException("no more");
            }
            return "line";
          }
        };
    for (boolean overwrite : new boolean[] {false, true}) {
      try {
        new S3LogStore(conf).write(commit, failing, overwrite, conf);
      } catch (IllegalStateException expected) {
        System.out.println("failed, there " + reader.exists(commit));
      }
    }
    for (boolean overwrite : new boolean[] {false, true}) {
      CheckpointFileManager manager = new S3CheckpointFileManager(new Path(folder), conf);
      CheckpointFileManager.CancellableFSDataOutputStream out = manager.createAtomic(commit, overwrite);
      out.write(1);
      out.cancel();
      out.close();
      System.out.println("cancelled, there " + reader.exists(commit));
    }
  }
}
