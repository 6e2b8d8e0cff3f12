package streamkeeper.sources;

import java.io.FileNotFoundException;
import java.lang.reflect.Method;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.errors.QueryExecutionErrors$;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.FileStatusCache;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.streaming.Offset;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.execution.streaming.runtime.FileStreamSource;
import org.apache.spark.sql.execution.streaming.runtime.FileStreamSourceLog;
import org.apache.spark.sql.execution.streaming.runtime.FileStreamSourceOffset;
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Some;
import scala.Tuple2;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's source of files, in whose batches no file's name acts on another file.
 *
 * <p>For each file of a batch whose name has one of the signs <code>{}[]*?\</code>, Spark 4.2.0 reads all files of the
 * batch once more: it splits their paths into patterns and others, and where patterns are not to be expanded, as here,
 * puts the paths of all in the place of each (DataSource.checkAndGlobPathIfNecessary).
 *
 * <p>Of a batch with files in folders {@code column=value}, it leaves out those that are in none, without a word; where
 * earlier batches had such folders and this one has none, it fails (PartitioningAwareFileIndex.listFiles). Here they are
 * read, and the column is null in their rows.
 *
 * <p>Of a batch with files that are gone since they were listed, which may be hours ago (maxCachedFiles, AvailableNow), it
 * reads the others, and counts all as read (HadoopFSUtils.listLeafFiles). Here the batch fails, as it does where a file
 * goes later, and the next driver parks the flow (check_planned_files).
 */
public final class Files extends FileStreamSource {
  private final SparkSession session;
  private final String format;
  private final Seq<String> partitions;

  /** Last list of files that an earlier driver wrote: this one looked after what is to be read of these before it began. */
  private final long listedBefore;

  private Files(
      SparkSession session,
      String path,
      String format,
      StructType schema,
      Seq<String> partitions,
      String metadata,
      Map<String, String> options) {
    super(session, path, format, schema, partitions, metadata, options);
    this.session = session;
    this.format = format;
    this.partitions = partitions;
    this.listedBefore = currentLogOffset();
  }

  /** Returns a stream of files, as {@code readStream} opened it, that is read by this source. */
  public static Dataset<Row> of(Dataset<Row> stream) {
    StreamingRelation opened = (StreamingRelation) stream.logicalPlan();
    StreamingRelation read =
        opened.copy(new Opened(opened.dataSource()), opened.sourceName(), opened.output(), opened.sourceIdentifyingName());
    return Dataset.ofRows(stream.sparkSession(), read);
  }

  private static final class Opened extends DataSource {
    private static final long serialVersionUID = 1;

    Opened(DataSource spark) {
      super(
          spark.sparkSession(), spark.className(), spark.paths(), spark.userSpecifiedSchema(), spark.partitionColumns(),
          spark.bucketSpec(), spark.options(), spark.catalogTable(), spark.userSpecifiedStreamingSourceName());
    }

    @Override
    public Source createSource(String metadata) {
      Map<String, String> options = CaseInsensitiveMap$.MODULE$.apply(options());
      SourceInfo info = sourceInfo();
      SparkSession session = (SparkSession) sparkSession();
      return new Files(
          session, options.get("path").get(), className(), info.schema(), info.partitionColumns(), metadata, options);
    }
  }

  @Override
  public Dataset<Row> getBatch(Option<Offset> start, Offset end) {
    List<FileEntry> entries = entries(start, end);
    List<Path> paths = new ArrayList<>();
    entries.forEach(entry -> paths.add(entry.sparkPath().toPath()));
    Dataset<Row> batch = read(start, end, paths);
    checkThere(entries, batch);
    return batch;
  }

  private Dataset<Row> read(Option<Offset> start, Offset end, List<Path> paths) {
    Map<String, String> options = spark("optionsForInnerDataSource");
    List<Path> inFolders = inFolders(paths, options);
    boolean isBeside =
        options.contains("basePath")
            && inFolders.size() < paths.size()
            && (partitions.nonEmpty() || !inFolders.isEmpty());
    if (!isBeside && paths.stream().noneMatch(path -> SparkHadoopUtil.get().isGlobPath(path))) {
      return super.getBatch(start, end);
    }
    Path sample = inFolders.isEmpty() ? paths.get(0) : inFolders.get(0);
    Seq<String> first = sequence(List.of(sample.toString()));
    DataSource one =
        new DataSource(
            session, format, first, new Some<>(schema()), partitions, Option.empty(), options, Option.empty(), Option.empty());
    HadoopFsRelation of = (HadoopFsRelation) one.resolveRelation(false, true, one.resolveRelation$default$3());
    InMemoryFileIndex files =
        isBeside
            ? new Beside(session, sequence(paths), options, schema(), of.partitionSchema())
            : new InMemoryFileIndex(
                session, sequence(paths), options, new Some<>(schema()), FileStatusCache.getOrCreate(session),
                Option.empty(), Option.empty());
    HadoopFsRelation all =
        of.copy(
            files, of.partitionSchema(), of.dataSchema(), of.bucketSpec(), of.fileFormat(), of.options(), of.sparkSession());
    return Dataset.ofRows(session, LogicalRelation$.MODULE$.apply(all, true));
  }

  /**
   * Fails if a file that was listed since this driver began is none of those of which Spark made its batch. What the log
   * of a Spark sink of files lists may have been removed long ago.
   */
  private void checkThere(List<FileEntry> entries, Dataset<Row> batch) {
    List<FileEntry> listed = entries.stream().filter(entry -> entry.batchId() > listedBefore).toList();
    if (listed.isEmpty() || sourceHasMetadata().contains(true)) {
      return;
    }
    Set<Path> present = new HashSet<>();
    for (String file : ((HadoopFsRelation) ((LogicalRelation) batch.logicalPlan()).relation()).inputFiles()) {
      present.add(new Path(URI.create(file)));
    }
    for (FileEntry entry : listed) {
      Path path = entry.sparkPath().toPath();
      if (!present.contains(path)) {
        FileNotFoundException gone = new FileNotFoundException(path + " was removed before it was read");
        throw Files.<RuntimeException>raised(QueryExecutionErrors$.MODULE$.fileNotExistError(path.toString(), gone));
      }
    }
  }

  /** Throws what Spark's own methods throw, which declare nothing. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> T raised(Throwable error) throws T {
    throw (T) error;
  }

  private List<FileEntry> entries(Option<Offset> start, Offset end) {
    long after = start.isEmpty() ? -1 : FileStreamSourceOffset.apply(start.get()).logOffset();
    long upto = FileStreamSourceOffset.apply(end).logOffset();
    FileStreamSourceLog log = spark("metadataLog");
    List<FileEntry> entries = new ArrayList<>();
    for (Tuple2<Object, FileEntry[]> batch : log.get(new Some<>(after + 1), new Some<>(upto))) {
      entries.addAll(List.of(batch._2()));
    }
    return entries;
  }

  /** Returns the files that are in a folder {@code column=value} below the source's own. */
  private static List<Path> inFolders(List<Path> files, Map<String, String> options) {
    if (!options.contains("basePath")) {
      return List.of();
    }
    String base = new Path(options.apply("basePath")).toUri().getPath();
    List<Path> inside = new ArrayList<>();
    for (Path file : files) {
      Path folder = file.getParent();
      while (folder != null && !folder.toUri().getPath().equals(base) && folder.getName().indexOf('=') <= 0) {
        folder = folder.getParent();
      }
      if (folder != null && !folder.toUri().getPath().equals(base)) {
        inside.add(file);
      }
    }
    return inside;
  }

  /** Files of which some are in folders {@code column=value}, and the others have null in these columns. */
  private static final class Beside extends InMemoryFileIndex {
    private final StructType columns;

    Beside(SparkSession session, Seq<Path> paths, Map<String, String> options, StructType schema, StructType columns) {
      super(
          session, paths, options, new Some<>(schema), FileStatusCache.getOrCreate(session), Option.empty(),
          Option.empty());
      this.columns = columns;
    }

    @Override
    public PartitionSpec partitionSpec() {
      List<PartitionPath> folders =
          new ArrayList<>(CollectionConverters.asJava(super.partitionSpec().partitions()));
      Set<Path> known = new HashSet<>();
      folders.forEach(folder -> known.add(folder.path()));
      InternalRow none = new GenericInternalRow(columns.size());
      for (Path folder : CollectionConverters.asJava(leafDirToChildrenFiles().keySet())) {
        if (!known.contains(folder)) {
          folders.add(new PartitionPath(none, folder));
        }
      }
      return new PartitionSpec(columns, sequence(folders));
    }
  }

  private static <T> Seq<T> sequence(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  /** Returns what Spark's class keeps for itself. */
  @SuppressWarnings("unchecked")
  private <T> T spark(String name) {
    try {
      Method method = FileStreamSource.class.getDeclaredMethod(name);
      method.setAccessible(true);
      return (T) method.invoke(this);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("Streamkeeper does not fit this Spark: its files source has no " + name, error);
    }
  }
}
